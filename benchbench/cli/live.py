"""Progress of a measuring command. Imported only by commands that measure, to keep `--help` fast."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from benchbench.analyse.roofline import Ceiling
from benchbench.cli.live_table import LiveTable, alternative, differing_params, work_title
from benchbench.cli.screen import print_code, print_message
from benchbench.documents.plan import SIDES, left_out_summary, run_summary, time_split
from benchbench.documents.short_names import VaryingParams
from benchbench.errors import UnreadableInput
from benchbench.format import count_of, seconds, visible
from benchbench.machine.conditions import step_s
from benchbench.model.case import Case
from benchbench.model.measurement import Failure, Measurement
from benchbench.model.profile import Profiled
from benchbench.model.run import Record, Run, RunInfo
from benchbench.redaction import hide_secrets, process_redaction
from benchbench.running import observer
from benchbench.running.observer import RunObserver, RunProgress
from benchbench.store.selectors import results_option


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
            self._table.describe(visible(self._hide(text)))

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
