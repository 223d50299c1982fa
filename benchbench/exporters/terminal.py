"""The report on a terminal: a table per work, split into several where its columns do not fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import StringIO
from typing import TYPE_CHECKING, ClassVar

from benchbench.documents.run import Column, Group, Report
from benchbench.exporters.base import Exporter

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

COLUMN = 21  # `18.4 ms [18.1, 18.7]¹`: three columns and their labels in 80 characters
GAP = 2  # between columns


class Terminal(Exporter):
    """Text of a given width, with or without colour."""

    extension: ClassVar[str] = "txt"

    def __init__(self, width: int = 100, *, color: bool = False) -> None:
        """`width` in character cells."""
        self._width = width
        self._color = color

    def export(self, report: Report) -> dict[str, bytes]:
        """The text, as if it were to be stored."""
        return {"report.txt": self.render(report).encode()}

    def render(self, report: Report) -> str:
        """What to print."""
        from rich.text import Text

        console = self._console()
        for line in report.head:
            console.print(Text(line, overflow="fold"))
        for group in report.groups:
            console.print()
            console.print(Text(group.title, style="bold", overflow="fold"))
            for table in self._tables(report, group):
                console.print(table)
        console.print()
        for line in report.foot:
            console.print(Text(line, overflow="fold"))
        assert isinstance(console.file, StringIO)
        return "\n".join(line.rstrip() for line in console.file.getvalue().rstrip().split("\n")) + "\n"

    def _console(self) -> Console:
        from rich.console import Console

        return Console(
            file=StringIO(),
            width=self._width,
            force_terminal=self._color,
            color_system="standard" if self._color else None,
            no_color=not self._color,
            markup=False,
            highlight=False,
            emoji=False,
            legacy_windows=False,
            _environ={},  # the caller has decided on width and colour
        )

    def _tables(self, report: Report, group: Group) -> Iterator[Table]:
        """Each has the labels and as many of the group's columns as fit."""
        present = [index for index, cell in enumerate(group.cells) if cell]
        labels = max(len(line.label) for line in group.lines)
        count = max(1, min(len(report.columns), (self._width - labels) // (COLUMN + GAP)))
        room = (self._width - labels) // count - GAP
        widths = labels, max(1, min(room, _widest(report)))
        for start in range(0, len(present), count):
            yield _table(report, group, present[start : start + count], widths)


def _widest(report: Report) -> int:
    """Of any column of the report: all tables get the same, so that they line up."""
    from rich.cells import cell_len

    texts = [text for group in report.groups for line in group.lines for text in line.texts]
    texts += [text for column in report.columns for text in _header(column).split("\n")]
    return max(map(cell_len, texts))


def _table(report: Report, group: Group, indices: Sequence[int], widths: tuple[int, int]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="")
    table.add_column("", width=widths[0])
    for index in indices:
        table.add_column(Text(_header(report.columns[index]), style="dim"), width=widths[1], overflow="fold")
    for line in group.lines:
        texts = [_text(group, line.label, line.texts[index], index) for index in indices]
        if any(texts):
            table.add_row(Text(line.label, style="dim"), *texts)
    return table


def _header(column: Column) -> str:
    return f"{column.target} {column.version}\n{column.place}"


def _text(group: Group, label: str, text: str, index: int) -> Text:
    from rich.text import Text

    cell = group.cells[index]
    failed = cell is not None and not cell.ok
    fastest = label == "vs fastest" and text == "1.00×"
    return Text(text, style="red" if failed else "green" if fastest else "", overflow="fold")
