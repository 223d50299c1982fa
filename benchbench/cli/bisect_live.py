"""Progress of `accelbench bisect`: a line per pair, and on a terminal a status line."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from benchbench.cli.screen import print_message
from benchbench.format import significant, visible
from benchbench.model.measurement import Failure
from benchbench.model.profile import Profiled
from benchbench.model.run import Record
from benchbench.redaction import process_redaction
from benchbench.running import observer
from benchbench.running.bisecting import BisectObserver, MeasuredPair

if TYPE_CHECKING:
    from rich.status import Status


class BisectLines(BisectObserver):
    """Prints the progress of a bisection to standard error."""

    def __init__(self) -> None:
        self._redact = process_redaction()  # logs of CI services are public
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
        """Print a line above the status."""
        if self._status:
            self._status.console.print(_plain_text(text), highlight=False)
        else:
            print_message(text)

    def stage(self, text: str) -> None:
        """Update the status on a terminal. Logs have only the lines of pairs."""
        if self._status:
            self._status.update(_plain_text(text))

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


def _plain_text(text: str) -> Any:
    from rich.text import Text

    return Text(visible(text))
