"""Progress of a measuring command: lines, and a table on a terminal. Imported late, to keep `--help` fast."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from benchbench.analyse.roofline import Ceiling
from benchbench.cli.screen import plain_text, print_code, print_message
from benchbench.documents.answers import answer
from benchbench.documents.plan import SIDES, left_out_summary, run_summary, time_left, time_split
from benchbench.documents.run_table import short_title
from benchbench.documents.short_names import VaryingParams, varying_params
from benchbench.errors import UnreadableInput
from benchbench.format import at_words, count_of, duration, seconds, significant, visible
from benchbench.judging.ranking import judge_records, work_key
from benchbench.machine.conditions import step_s
from benchbench.model.case import Case
from benchbench.model.measurement import Failure, Measurement
from benchbench.model.profile import Profiled
from benchbench.model.run import Record, Run, RunInfo
from benchbench.redaction import hide_secrets, process_redaction
from benchbench.running import observer
from benchbench.running.observer import MeasuredPair, RunObserver, RunProgress
from benchbench.store.selectors import results_option

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.status import Status

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
        status.add_row(self._bar, Text(text), plain_text(self._stage))
        parts: list[RenderableType] = [*self._heat_parts(), status]
        visible_answers = [(work, line) for work, line in self._answers.items() if line][-ANSWERS:]
        parts += [plain_text(self._redact(f"{work}: {line}")) for work, line in visible_answers]
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
        title = self._redact(f"{work_title(self._cases[0][1], self._differing)}   {heat}")
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
        return [plain_text(title, "bold"), table]

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


class Lines(RunObserver):
    """Prints the progress of a run to standard error: a line per heat and, at the end, a summary."""

    def __init__(
        self,
        *,
        summary: bool = True,
        report: str = "",
        verbose: bool = False,
        results: Path = Path("results"),
        started: float | None = None,
    ) -> None:
        """`report` is the verb that shows the run of `results`. `verbose` adds a summary of time spent.

        `started`: time of the command's start (as `time.time`), from which the first run's time is counted.
        """
        self._started = started
        self._setup_s = 0.0
        self._table: LiveTable | None = None
        self._heat: list[tuple[int, Record]] = []  # records of the current heat; used without a terminal
        self._summary = summary
        self._report = report
        self._where = hide_secrets()(results_option(results))  # paths in commands are not redacted
        self._verbose = verbose
        self._infos: Sequence[RunInfo] = ()  # of the started runs
        self._differing: VaryingParams = set()
        self._sides = [""]
        self._redact = process_redaction()  # logs of CI services are public
        self._hide = hide_secrets()

    def note(self, text: str) -> None:
        """Print a line above the table, without control characters and secrets."""
        self._print(self._hide(text))

    def _print(self, text: str, style: str = "") -> None:
        if self._table:
            self._table.print(visible(text), style)
        else:
            print_message(text)

    def stage(self, text: str) -> None:
        """Show the stage on a terminal. Logs have only lines of results."""
        if self._table:
            self._table.describe(self._hide(text))

    def begin(self, infos: Sequence[RunInfo]) -> None:
        """Print the omitted cases, then start the table if there is a terminal."""
        self._setup_s = time.time() - self._started if self._started is not None else 0.0
        self._started = None
        print_message(*map(self._redact, left_out_summary(infos)))
        self._infos = infos
        self._differing = differing_params(infos)
        self._sides = [f"{side} " for side in SIDES] if len(infos) > 1 else [""]
        if len(infos) > 1:
            labels = [info.partner.label if info.partner else info.id for info in infos]
            sides_text = [f"{side}: {self._redact(label)}" for side, label in zip(SIDES, labels, strict=True)]
            print_message(", ".join(sides_text))
        if sys.stderr.isatty() and infos[0].plan:
            self._table = LiveTable(infos, self._differing, self._redact)

    def resume(self, records: Sequence[Record]) -> None:
        """Print the number of existing records."""
        exist = "exists" if len(records) == 1 else "exist"
        self.note(f"{count_of(len(records), 'record')} {exist} already")
        if self._table:
            for record in records:
                self._table.add(record, 0, earlier=True)

    def heat(self, cases: Sequence[tuple[int, Case]], number: int) -> None:
        """Show the cases of the heat; without a terminal, print the results of the previous heat."""
        self._print_heat()
        if self._table:
            self._table.heat(cases, number)

    def progress(self, place: int, state: str) -> None:
        """Show the state of a case on a terminal."""
        if self._table:
            self._table.progress(place, state)

    def record(self, record: Record, side: int) -> None:
        """Print failures and unverified cases; without a terminal, the other cases of a heat share a line."""
        if self._table:
            self._table.add(record, side)
        if isinstance(record.outcome, Failure):
            self._print(self._sides[side] + self._redact(observer.line(record)), "red")
        elif record.outcome.unverified and not record.round:
            self._print(self._sides[side] + self._redact(observer.line(record)))
        elif not self._table:
            self._heat.append((side, record))

    def _print_heat(self) -> None:
        """Print the results of the finished heat."""
        heat, self._heat = self._heat, []
        if heat:
            print_message(self._redact(heat_line(heat, self._sides, self._differing)))

    def interruption_message(self, resume_command: str = "") -> str:
        """Message for an interrupted command, with the command that uses the finished cases.

        It has no count of cases, since a record is stored before the observer receives it.
        """
        if not self._infos:
            return "nothing was measured"
        if len(self._infos) > 1:
            resume_command = f"accelbench compare {' '.join(info.id for info in self._infos)}{self._where}"
        message = "finished cases are stored"
        return f"{message}: {resume_command}" if resume_command else message

    def profile(self, profile: Profiled) -> None:
        self.note(self._redact(observer.profile_line(profile)))

    def end(self, runs: Sequence[RunProgress]) -> None:
        """Print the outcomes of the cases and the next command."""
        if self._table:
            self._table.stop()
            self._table = None
        self._print_heat()
        for side, progress in zip(self._sides, runs, strict=True) if self._summary else ():
            summary = run_summary(progress.records, progress.info, progress.wall_s, self._setup_s)
            print_message(side + summary.rstrip())
            if self._verbose:
                last_part = [
                    record for record in progress.records if record.part == len(progress.info.resumed)
                ]
                print_message(f"time: {time_split(last_part, progress.stages_s)}")
            if self._report == "report":
                from benchbench.diagnosis.ceilings import read_ceilings
                from benchbench.documents.run import answer_cells

                ceilings: tuple[Ceiling, ...] = ()
                if progress.info.models:  # the bound of a language model depends on the memory's rate
                    with suppress(UnreadableInput):
                        ceilings = read_ceilings(progress.info.machine)
                run = Run(info=progress.info, records=tuple(progress.records))
                for cell in answer_cells(run, ceilings):
                    print_message(str(cell))
                    print_code(cell.code)
            if self._report:
                print_message(f"next: accelbench {self._report} {progress.info.id}{self._where}")


def heat_line(heat: Sequence[tuple[int, Record]], sides: Sequence[str], differing: VaryingParams) -> str:
    """`heat 1  gemm m=512 … · float32 · cpu: openvino graph 1.71 ms, jax jit 2.98 ms`, fastest first."""
    results: list[tuple[float, str]] = []
    for side, record in heat:
        if isinstance(outcome := record.outcome, Measurement):
            step, name = step_s(outcome), f"{sides[side]}{alternative(record.case)}"
            results.append((step, f"{name} {seconds(step)}{'' if outcome.steady else ' (still warming up)'}"))
    title, number = work_title(heat[0][1].case, differing), heat[0][1].round + 1
    return f"heat {number}  {title}: {', '.join(text for _, text in sorted(results))}"


class BisectLines(RunObserver):
    """Prints the progress of a bisection to standard error."""

    def __init__(self, status: Status | None) -> None:
        """`status`: the status line of a terminal."""
        self._status = status
        self._redact = process_redaction()  # logs of CI services are public
        self._pairs = 0

    def note(self, text: str) -> None:
        """Print a line above the status."""
        if self._status:
            self._status.console.out(visible(text), highlight=False)
        else:
            print_message(text)

    def stage(self, text: str) -> None:
        """Update the status on a terminal. Logs have only the lines of pairs."""
        if self._status:
            self._status.update(plain_text(text))

    def record(self, record: Record, side: int) -> None:
        """Print failures; pairs have lines of their own."""
        if isinstance(record.outcome, Failure):
            self.note(self._redact(observer.line(record)))

    def pair(self, pair: MeasuredPair) -> None:
        self._pairs += 1
        self.note(pair_line(pair))

    def interruption_message(self) -> str:
        """Message for an interrupted command."""
        if not self._pairs:
            return "no pair was finished"
        return "finished pairs are stored as runs; accelbench list runs shows them"

    def profile(self, profile: Profiled) -> None:
        self.note(self._redact(observer.profile_line(profile)))


def pair_line(pair: MeasuredPair) -> str:
    """`pair 9   2.11 beside 2.9  1.052×  before: 2.10 … 2.12`; pairs of the ends show the case instead."""
    change = "no value" if pair.change is None else f"{significant(pair.change)}×"
    details = f"  {visible(pair.case)}"
    if pair.span:
        first, last = pair.span
        details = f"  before: {first}" if first == last else f"  before: {first} … {last}"
    return f"pair {pair.number + 1:<3} {pair.version} beside {pair.beside}  {change}{details}"
