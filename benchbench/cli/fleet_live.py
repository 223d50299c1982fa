"""Progress of `accelbench fleet`: a table on a terminal, otherwise a line per record."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchbench.cli.screen import plain_text, print_message
from benchbench.cluster.fleet import FleetObserver
from benchbench.cluster.machines import ShareState
from benchbench.cluster.receiver import ShareProgress
from benchbench.documents.fleet import events_text
from benchbench.format import visible
from benchbench.model.measurement import Failure
from benchbench.model.run import Record
from benchbench.running import observer

if TYPE_CHECKING:
    from rich.table import Table


class FleetLines(FleetObserver):
    """Prints the progress of a fleet to standard error: a table on a terminal, else a line per record."""

    def __init__(self) -> None:
        self._table: LiveTable | None = None
        self._begun = False

    def note(self, text: str) -> None:
        """Print a line above the table."""
        if self._table:
            self._table.print(visible(text))
        else:
            print_message(text)

    def changed(self, shares: Sequence[ShareProgress]) -> None:
        """Update the table if there is a terminal."""
        self._begun = True
        if sys.stderr.isatty():
            self._table = self._table or LiveTable()
            self._table.show(shares)

    def record(self, machine: str, record: Record) -> None:
        """Print the line of a record; with a table, only of failures."""
        if self._table is None or isinstance(record.outcome, Failure):
            self.note(f"{machine}  {observer.line(record)}")

    def interruption_message(self) -> str:
        """Message for an interrupted command."""
        if not self._begun:
            return "nothing was measured"
        return "received records are stored; accelbench fleet --resume measures the rest"

    def close(self) -> None:
        """Remove the table; the result has another one."""
        if self._table:
            self._table.close()
        self._table = None


class LiveTable:
    """Table with a row per share, redrawn in place."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
        self._live.start()

    def show(self, shares: Sequence[ShareProgress]) -> None:
        """Redraw the table."""
        self._live.update(progress_table(shares), refresh=True)

    def print(self, text: str) -> None:
        """Print a line above the table."""
        self._live.console.out(text, highlight=False)

    def close(self) -> None:
        """Remove the table."""
        self._live.stop()


def progress_table(shares: Sequence[ShareProgress]) -> Table:
    """Table with a row per share: its progress, or its outcome."""
    from rich.table import Table

    table = Table("machine", "type", "state", "cases", "now", box=None, padding=(0, 2, 0, 0))
    for share in shares:
        is_over = share.state in (ShareState.DONE, ShareState.LOST, ShareState.FAILED)
        now = events_text(share) if is_over else share.stage
        cases = f"{share.finished} of {share.cases}" if share.cases else ""
        table.add_row(*map(plain_text, (share.machine, share.kind, share.state.value, cases, now)))
    return table
