"""What `accelbench fleet` shows while it measures: one table on a terminal, else a line per record."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchbench.cli.screen import tell
from benchbench.cluster.fleet import FleetObserver
from benchbench.cluster.machines import ShareState
from benchbench.cluster.receiver import ShareProgress
from benchbench.documents.fleet import events_text
from benchbench.format import visible
from benchbench.model.measurement import Failure
from benchbench.model.record import Record
from benchbench.running import observer

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


class FleetLines(FleetObserver):
    """Shows a fleet's progress on standard error: a table on a terminal, else a line per record."""

    def __init__(self) -> None:
        self._table: LiveTable | None = None
        self._begun = False

    def note(self, text: str) -> None:
        """A line, above the table."""
        if self._table:
            self._table.print(visible(text))
        else:
            tell(text)

    def changed(self, shares: Sequence[ShareProgress]) -> None:
        """The table, where there is a terminal to show it."""
        self._begun = True
        if sys.stderr.isatty():
            self._table = self._table or LiveTable()
            self._table.show(shares)

    def record(self, machine: str, record: Record) -> None:
        """Print the record's line; above a table only where it failed."""
        if self._table is None or isinstance(record.outcome, Failure):
            self.note(f"{machine}  {observer.line(record)}")

    def kept(self) -> str:
        """What somebody who interrupts is told."""
        if not self._begun:
            return "nothing was measured"
        return "every record that arrived is kept; accelbench fleet --resume measures the others"

    def close(self) -> None:
        """Take the table away: the answer has another."""
        if self._table:
            self._table.close()
        self._table = None


class LiveTable:
    """A line per share, written over."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
        self._live.start()

    def show(self, shares: Sequence[ShareProgress]) -> None:
        """Show how far all machines have come."""
        self._live.update(progress_table(shares), refresh=True)

    def print(self, text: str) -> None:
        """Print a line above the table."""
        from rich.text import Text

        self._live.console.print(Text(text), highlight=False)

    def close(self) -> None:
        """Take it away."""
        self._live.stop()


def progress_table(shares: Sequence[ShareProgress]) -> Table:
    """What each machine is doing now, or what became of it."""
    from rich.table import Table

    table = Table("machine", "type", "state", "cases", "now", box=None, padding=(0, 2, 0, 0))
    for each in shares:
        over = each.state in (ShareState.DONE, ShareState.LOST, ShareState.FAILED)
        now = events_text(each) if over else each.stage
        cases = f"{each.finished} of {each.cases}" if each.cases else ""
        cells = map(visible, (each.machine, each.kind, each.state.value, cases, now))
        table.add_row(*map(_plain, cells))
    return table


def _plain(text: str) -> Text:
    from rich.text import Text

    return Text(text, no_wrap=True, overflow="ellipsis")
