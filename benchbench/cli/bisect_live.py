"""What `accelbench bisect` shows while it measures: a line per pair, and on a terminal what is under way."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from benchbench.cli.screen import tell
from benchbench.format import significant, visible
from benchbench.model.measurement import Failure
from benchbench.model.profile import Profiled
from benchbench.model.record import Record
from benchbench.redaction import own_redaction
from benchbench.running import observer
from benchbench.running.bisecting import BisectObserver, MadePair

if TYPE_CHECKING:
    from rich.status import Status


class BisectLines(BisectObserver):
    """On standard error."""

    def __init__(self) -> None:
        self._redact = own_redaction()  # a log of a CI service is shown to others, as what is stored
        self._stack = ExitStack()
        self._status: Status | None = None
        self._pairs = 0

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console

            self._status = self._stack.enter_context(Console(stderr=True).status(""))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def note(self, text: str) -> None:
        """A line, above what is under way."""
        if self._status:
            self._status.console.print(_plain(text), highlight=False)
        else:
            tell(text)

    def stage(self, text: str) -> None:
        """Show it on a terminal only: in a log a pair is the line."""
        if self._status:
            self._status.update(_plain(text))

    def record(self, record: Record, side: int) -> None:
        """Print what failed; a pair has a line of its own."""
        if isinstance(record.outcome, Failure):
            self.note(self._redact(observer.line(record)))

    def pair(self, made: MadePair) -> None:
        self._pairs += 1
        self.note(pair_line(made))

    def kept(self) -> str:
        """What somebody who interrupts is told."""
        if not self._pairs:
            return "no pair was finished"
        return "every finished pair is kept; accelbench list runs shows how to go on"

    def profile(self, profile: Profiled) -> None:
        self.note(self._redact(observer.profile_line(profile)))


def pair_line(made: MadePair) -> str:
    """`pair 9   2.11 beside 2.9  1.052×  before: 2.10 … 2.12`; of the ends the case, which may be of many."""
    change = "no value" if made.change is None else f"{significant(made.change)}×"
    known = f"  {visible(made.case)}"
    if made.span:
        first, last = made.span
        known = f"  before: {first}" if first == last else f"  before: {first} … {last}"
    return f"pair {made.number + 1:<3} {made.version} beside {made.beside}  {change}{known}"


def _plain(text: str) -> Any:
    from rich.text import Text

    return Text(visible(text))
