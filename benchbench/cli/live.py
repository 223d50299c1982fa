"""What a command shows while it measures. Imported where something is measured: `--help` needs none of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from benchbench.cli.live_table import LiveTable, alternative, differing_params, work_title
from benchbench.cli.screen import tell
from benchbench.documents.plan import SIDES, left_out_summary, run_summary, time_split
from benchbench.documents.short_names import VaryingParams
from benchbench.format import count_of, seconds, visible
from benchbench.machine.conditions import step_s
from benchbench.model.case import Case
from benchbench.model.measurement import Failure, Measurement
from benchbench.model.profile import Profiled
from benchbench.model.record import Record
from benchbench.model.run import Run, RunInfo
from benchbench.redaction import hide_secrets, own_redaction
from benchbench.running import observer
from benchbench.running.observer import RunObserver, RunProgress
from benchbench.store.selectors import results_option


class Lines(RunObserver):
    """Shows a run on standard error: a line per record and, at the end, how many cases ended how."""

    def __init__(
        self,
        *,
        summary: bool = True,
        report: str = "",
        verbose: bool = False,
        results: Path = Path("results"),
    ) -> None:
        """`report`: the command that shows a run of `results`. `verbose`: tells where its time went, too."""
        self._table: LiveTable | None = None
        self._heat: list[tuple[int, Record]] = []  # of the current heat, if there is no terminal
        self._summary = summary
        self._report = report
        self._where = hide_secrets()(results_option(results))  # a path to type stays whole
        self._verbose = verbose
        self._infos: Sequence[RunInfo] = ()  # of what has begun
        self._differing: VaryingParams = set()
        self._sides = [""]
        self._redact = own_redaction()  # a log of a CI service is shown to others, as what is stored
        self._hide = hide_secrets()

    def note(self, text: str) -> None:
        """Print a line above the bar; control characters in it do not act on the terminal."""
        self._print(self._hide(text))

    def _print(self, text: str, style: str = "") -> None:
        if self._table:
            self._table.print(visible(text), style)
        else:
            tell(text)

    def stage(self, text: str) -> None:
        """Show it on a terminal only: in a log a case's result is the line."""
        if self._table:
            self._table.describe(visible(self._hide(text)))

    def begin(self, infos: Sequence[RunInfo]) -> None:
        """What is left out, then the bar if there is a terminal to show it."""
        tell(*map(self._redact, left_out_summary(infos)))
        self._infos = infos
        self._differing = differing_params(infos)
        self._sides = [f"{side} " for side in SIDES] if len(infos) > 1 else [""]
        if len(infos) > 1:
            labels = [info.partner.label if info.partner else info.id for info in infos]
            named = [f"{side}: {self._redact(label)}" for side, label in zip(SIDES, labels, strict=True)]
            tell(", ".join(named))
        if sys.stderr.isatty() and infos[0].plan:
            self._table = LiveTable(infos, self._differing, self._redact)

    def resume(self, records: Sequence[Record]) -> None:
        """How many records exist already."""
        exist = "exists" if len(records) == 1 else "exist"
        self.note(f"{count_of(len(records), 'record')} {exist} already")
        if self._table:
            for record in records:
                self._table.add(record, 0, earlier=True)

    def heat(self, cases: Sequence[tuple[int, Case]], number: int) -> None:
        """Show the cases of the heat; without a terminal, the results of the heat before."""
        self._print_heat()
        if self._table:
            self._table.heat(cases, number)

    def progress(self, place: int, state: str) -> None:
        """Show it on a terminal only."""
        if self._table:
            self._table.progress(place, state)

    def record(self, record: Record, side: int) -> None:
        """Print a failure at once; without a terminal, the other cases of a heat share a line."""
        if self._table:
            self._table.add(record, side)
        if isinstance(record.outcome, Failure):
            self._print(self._sides[side] + self._redact(observer.line(record)), "red")
        elif not self._table:
            self._heat.append((side, record))

    def _print_heat(self) -> None:
        """`heat 1  gemm m=512 … · float32 · cpu: openvino graph 1.71 ms, jax jit 2.98 ms`."""
        heat, self._heat = self._heat, []
        if heat:
            tell(self._redact(heat_line(heat, self._sides, self._differing)))

    def kept(self, goes_on: str = "") -> str:
        """Message for an interrupted command: the command that goes on with the finished cases.

        It counts no cases: a record is on disk before the observer hears of it.
        """
        if not self._infos:
            return "nothing was measured"
        if len(self._infos) > 1:
            goes_on = f"accelbench compare {' '.join(info.id for info in self._infos)}{self._where}"
        done = "every finished case is kept"
        return f"{done}: {goes_on}" if goes_on else done

    def profile(self, profile: Profiled) -> None:
        self.note(self._redact(observer.profile_line(profile)))

    def end(self, runs: Sequence[RunProgress]) -> None:
        """How many cases ended how, and what to type next."""
        if self._table:
            self._table.stop()
            self._table = None
        self._print_heat()
        for side, each in zip(self._sides, runs, strict=True) if self._summary else ():
            tell(side + run_summary(each.records, each.info, each.wall_s).rstrip())
            if self._verbose:
                own = [record for record in each.records if record.part == len(each.info.resumed)]
                tell(f"time: {time_split(own, each.stages_s)}")
            if self._report == "report":
                from benchbench.documents.run import answer

                tell(*answer(Run(info=each.info, records=tuple(each.records))))
            if self._report:
                tell(f"next: accelbench {self._report} {each.info.id}{self._where}")


def heat_line(heat: Sequence[tuple[int, Record]], sides: Sequence[str], differing: VaryingParams) -> str:
    """The results of a heat, fastest first, as a line of text."""
    results: list[tuple[float, str]] = []
    for side, record in heat:
        if isinstance(outcome := record.outcome, Measurement):
            step, name = step_s(outcome), f"{sides[side]}{alternative(record.case)}"
            results.append((step, f"{name} {seconds(step)}{'' if outcome.steady else ' (still warming up)'}"))
    title, number = work_title(heat[0][1].case, differing), heat[0][1].round + 1
    return f"heat {number}  {title}: {', '.join(text for _, text in sorted(results))}"
