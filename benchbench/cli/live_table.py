"""The table on a terminal during a run: the current work and the answers so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from benchbench.documents.answers import answer
from benchbench.documents.plan import SIDES, time_left
from benchbench.documents.run_table import short_title
from benchbench.documents.short_names import VaryingParams, varying_params
from benchbench.format import at_words, count_of, duration, seconds, visible
from benchbench.judging.ranking import judge_records, work_key
from benchbench.machine.conditions import step_s
from benchbench.model.case import Case
from benchbench.model.measurement import Failure, Measurement
from benchbench.model.run import Record, RunInfo

if TYPE_CHECKING:
    from rich.console import RenderableType

ANSWERS = 8  # works whose answers fit below the table


class LiveTable:
    """A row per case of the current work, the time left, and a line for each measured work."""

    def __init__(
        self, infos: Sequence[RunInfo], differing: VaryingParams, redact: Callable[[str], str]
    ) -> None:
        """`differing` are the parameters that differ between works. `redact` is applied to all texts."""
        from rich.console import Console
        from rich.live import Live
        from rich.progress_bar import ProgressBar

        self._infos = infos
        self._differing = differing
        self._redact = redact
        self._time_left = time_left(infos)
        self._total = sum(len(info.plan) * info.policy.rounds for info in infos)
        self._cases: Sequence[tuple[int, Case]] = ()
        self._number = 0
        self._states: dict[int, str] = {}
        self._stage = ""
        self._records: dict[tuple[object, ...], list[tuple[int, Record]]] = {}
        self._answers: dict[str, str] = {}
        self._bar = ProgressBar(total=self._total, width=20)
        self._console = Console(stderr=True)
        self._live = Live(
            console=self._console, get_renderable=self._render, refresh_per_second=4, transient=True
        )
        self._live.start()

    def describe(self, text: str) -> None:
        """Set the current stage."""
        self._stage = text

    def heat(self, cases: Sequence[tuple[int, Case]], number: int) -> None:
        """Start a heat."""
        self._cases, self._number, self._states, self._stage = cases, number, {}, ""

    def progress(self, index: int, state: str) -> None:
        """Set the state of a case of the heat."""
        self._states[index] = state

    def add(self, record: Record, side: int, *, earlier: bool = False) -> None:
        """Count a record. `earlier` marks records from before an interruption."""
        self._time_left.add(record, side, earlier=earlier)
        records = self._records.setdefault(work_key(record.case), [])
        records.append((side, record))
        for index, case in enumerate(self._cases):
            if case == (side, record.case):
                self._states[index] = (
                    "" if isinstance(record.outcome, Measurement) else str(record.outcome.status)
                )
        if len(self._infos) == 1:
            verdicts = judge_records([record for _, record in records], self._infos[0].policy)
            for verdict in verdicts.values():
                self._answers[work_title(record.case, self._differing)] = str(answer(verdict))

    def print(self, text: str, style: str = "") -> None:
        """Print lines above the table."""
        from rich.text import Text

        lines = Text("\n".join(at_words(text, self._console.width)), style=style)
        self._console.print(lines, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        """Remove the table."""
        self._live.stop()

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        time_left = self._time_left
        text = (
            "more heats of open works" if time_left.is_further else f"{duration(time_left.remaining_s)} left"
        )
        self._bar.update(time_left.done)
        status = Table.grid(padding=(0, 1))
        status.add_row(self._bar, Text(text), Text(self._stage, overflow="ellipsis", no_wrap=True))
        parts: list[RenderableType] = [*self._heat_parts(), status]
        visible_answers = [(work, line) for work, line in self._answers.items() if line][-ANSWERS:]
        parts += [
            Text(visible(self._redact(f"{work}: {line}")), overflow="ellipsis", no_wrap=True)
            for work, line in visible_answers
        ]
        if (more := len(self._answers) - ANSWERS) > 0:
            parts.append(Text(f"and {count_of(more, 'work')} before", style="dim"))
        return Group(*parts)

    def _heat_parts(self) -> list[RenderableType]:
        """Title of the current heat, and a row for each of its cases."""
        from rich.table import Table
        from rich.text import Text

        if not self._cases:
            return []
        planned = self._infos[0].policy.rounds
        heat = f"heat {self._number + 1} of {max(planned, self._number + 1)}"
        title = visible(self._redact(f"{work_title(self._cases[0][1], self._differing)}   {heat}"))
        table = Table(box=None, padding=(0, 2, 0, 0))
        for column in ("", "latency", "ratio", ""):
            table.add_column(column, justify="right" if column else "left")
        steps = {index: self._step_s(side, case) for index, (side, case) in enumerate(self._cases)}
        fastest = min((step for step in steps.values() if step), default=None)
        for index, (side, case) in enumerate(self._cases):
            step = steps[index]
            name = f"{SIDES[side]} {alternative(case)}" if len(self._infos) > 1 else alternative(case)
            latency = seconds(step) if step else ""
            ratio = f"{step / fastest:.2f}×" if step and fastest else ""
            table.add_row(
                *map(Text, (visible(self._redact(name)), latency, ratio, self._states.get(index, "waiting")))
            )
        return [Text(title, style="bold", overflow="ellipsis", no_wrap=True), table]

    def _step_s(self, side: int, case: Case) -> float | None:
        """Median step of the case's last process in seconds; None without one."""
        for record_side, record in reversed(self._records.get(work_key(case), [])):
            if (record_side, record.case) == (side, case):
                return None if isinstance(record.outcome, Failure) else step_s(record.outcome)
        return None


def differing_params(infos: Sequence[RunInfo]) -> VaryingParams:
    """Parameters that differ between the works of the plan."""
    return varying_params((case.workload, case.params) for info in infos for case in info.plan)


def work_title(case: Case, differing: VaryingParams) -> str:
    """Title of a case's work as in a report, with the kind of device."""
    return short_title(case, differing, case.device.partition(":")[0])


def alternative(case: Case) -> str:
    """`torch eager, 2 threads`: the fields that differ between the cases of a work."""
    settings = [f"{name}={value}" for name, value in case.environment.items()]
    threads = [count_of(case.threads, "thread")] if case.threads else []
    device = [case.device] if ":" in case.device else []
    return ", ".join([f"{case.target} {case.mode}".strip(), *device, *threads, *settings])
