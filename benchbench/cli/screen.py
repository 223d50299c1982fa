"""What is shown while a command works, and how tables and values are printed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from benchbench.model.record import Record
    from benchbench.model.run import RunInfo


class Lines:
    """A line per record: what a log can hold."""

    def announce(self, text: str) -> None:
        """Only what a case gives is worth a line in a log."""

    def show(self, record: Record, side: int | None = None) -> None:
        """The record's line; of two runs measured in turn, of which `side`."""
        self.say(_line(record, side))

    def say(self, text: str) -> None:
        """One line."""
        typer.echo(text, err=True)


class Bar(Lines):
    """On a terminal: what is under way and how long it will take, below the lines."""

    def __init__(self, infos: Sequence[RunInfo]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        from benchbench.documents.lists import forecast

        columns = (BarColumn(20), TextColumn("{task.fields[left]} left  {task.description}", markup=False))
        self.progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._forecasts = [forecast(info) for info in infos]
        total = sum(len(info.plan) * info.policy.rounds for info in infos)
        self._task = self.progress.add_task("", total=total, left=self._left)

    def announce(self, text: str) -> None:
        """What is under way."""
        self.progress.update(self._task, description=text, left=self._left)

    def show(self, record: Record, side: int | None = None) -> None:
        """Above the bar."""
        self._forecasts[side or 0].add(record)
        super().show(record, side)
        done = sum(each.done for each in self._forecasts)
        self.progress.update(self._task, completed=done, left=self._left)

    def say(self, text: str) -> None:
        """Above the bar."""
        from rich.text import Text

        self.progress.console.print(Text(text), highlight=False)

    @property
    def _left(self) -> str:
        from benchbench.running.progress import duration

        return duration(sum(each.remaining_s for each in self._forecasts))


def _line(record: Record, side: int | None) -> str:
    from benchbench.running.progress import line

    return line(record) if side is None else f"{'AB'[side]} {line(record)}"


@contextmanager
def screen(*infos: RunInfo) -> Iterator[Lines]:
    if not sys.stderr.isatty():
        yield Lines()
        return
    bar = Bar(infos)
    with bar.progress:
        yield bar


def tell(lines: Iterable[str]) -> None:
    """Beside the answer, safe to show."""
    from benchbench.format import visible

    for line in lines:
        typer.echo(visible(line), err=True)


def width() -> int | None:
    """Of the terminal; None where the output is a file or a pipe, which need no wrapping."""
    from shutil import get_terminal_size

    return get_terminal_size().columns if sys.stdout.isatty() else None


def color() -> bool:
    """NO_COLOR and FORCE_COLOR win over what the output is."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty()


def save(files: Mapping[str, bytes], place: Path, run: Path | None = None) -> None:
    """Into the folder `place`; of one in the folder `run` no link is followed."""
    from benchbench.store import disk

    for name, content in files.items():
        if run:
            disk.save_below(run, place / name, content)
        else:
            disk.save(place / name, content)
        typer.echo(f"wrote {place / name}", err=True)
