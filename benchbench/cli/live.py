"""What a command shows while it measures. Imported where something is measured: `--help` needs none of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from benchbench.cli.screen import tell
from benchbench.documents.plan import SIDES, left_out_of, run_summary, time_left, time_split
from benchbench.format import at_words, count_of, visible
from benchbench.model.measurement import Failure
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
        self._bar: ProgressLine | None = None
        self._summary = summary
        self._report = report
        self._where = hide_secrets()(results_option(results))  # a path to type stays whole
        self._verbose = verbose
        self._infos: Sequence[RunInfo] = ()  # of what has begun
        self._sides = [""]
        self._redact = own_redaction()  # a log of a CI service is shown to others, as what is stored
        self._hide = hide_secrets()

    def note(self, text: str) -> None:
        """Print a line above the bar; control characters in it do not act on the terminal."""
        self._print(self._hide(text))

    def _print(self, text: str, style: str = "") -> None:
        if self._bar:
            self._bar.print(visible(text), style)
        else:
            tell(text)

    def stage(self, text: str) -> None:
        """Show it on a terminal only: in a log a case's result is the line."""
        if self._bar:
            self._bar.describe(visible(self._hide(text)))

    def begin(self, infos: Sequence[RunInfo]) -> None:
        """What is left out, then the bar if there is a terminal to show it."""
        tell(*map(self._redact, left_out_of(infos)))
        self._infos = infos
        self._sides = [f"{side} " for side in SIDES] if len(infos) > 1 else [""]
        if len(infos) > 1:
            labels = [info.partner.label if info.partner else info.id for info in infos]
            named = [f"{side}: {self._redact(label)}" for side, label in zip(SIDES, labels, strict=True)]
            tell(", ".join(named))
        if sys.stderr.isatty() and infos[0].plan:
            self._bar = ProgressLine(infos)

    def resume(self, records: Sequence[Record]) -> None:
        """How many records exist already."""
        exist = "exists" if len(records) == 1 else "exist"
        self.note(f"{count_of(len(records), 'record')} {exist} already")
        if self._bar:
            for record in records:
                self._bar.add(record, 0, earlier=True)

    def record(self, record: Record, side: int) -> None:
        """Print the record's line, with its side where there are two."""
        if self._bar:
            self._bar.add(record, side)
        failed = isinstance(record.outcome, Failure)
        self._print(self._sides[side] + self._redact(observer.line(record)), "red" if failed else "")

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
        if self._bar:
            self._bar.stop()
            self._bar = None
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


class ProgressLine:
    """The bar below the lines on a terminal: the time left, and the stage that is under way."""

    def __init__(self, infos: Sequence[RunInfo]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
        from rich.table import Column
        from rich.text import Text

        self._time_left = left = time_left(infos)

        class LeftColumn(ProgressColumn):
            max_refresh = 1.0  # seconds: it goes down while a case is measured

            def render(self, task: Task) -> Text:
                if left.is_further:
                    return Text("more rounds of what is undecided", style="default")
                return Text(f"{observer.duration(left.remaining_s)} left", style="default")

        one_line = Column(no_wrap=True, overflow="ellipsis", ratio=1)
        stage = TextColumn("{task.description}", markup=False, table_column=one_line)
        columns = (BarColumn(20), LeftColumn(Column(no_wrap=True)), stage)
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True, expand=True)
        total = sum(len(info.plan) * info.policy.rounds for info in infos)
        self._task = self._progress.add_task("", total=total)
        self._progress.start()

    def describe(self, text: str) -> None:
        """What is under way."""
        self._progress.update(self._task, description=text)

    def add(self, record: Record, side: int, *, earlier: bool = False) -> None:
        """Count a record. `earlier`: made before the run was interrupted."""
        self._time_left.add(record, side, earlier=earlier)
        self._progress.update(self._task, completed=self._time_left.done)

    def print(self, text: str, style: str = "") -> None:
        """Above the bar."""
        from rich.text import Text

        lines = Text("\n".join(at_words(text, self._progress.console.width)), style=style)
        self._progress.console.print(lines, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        """Take it away."""
        self._progress.stop()
