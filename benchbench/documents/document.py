"""The answer of a command: a frozen value that every exporter renders in its own format.

Texts are as they came from the data: an exporter makes them safe to show in its format. Plots are data, too:
the values that are drawn, in SI base units; how they look is the exporters' business.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from benchbench import format as fmt
from benchbench.errors import UsageError, unknown

if TYPE_CHECKING:
    from benchbench.judging.change_points import History


class Tone(StrEnum):
    """How a cell is to be taken; a colour where the format has colours."""

    PLAIN = "plain"
    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"


class Layout(StrEnum):
    """How a table is best laid out where columns may be cut off; formats without an edge show a grid."""

    GRID = "grid"  # a line per row
    PARAGRAPHS = "paragraphs"  # some lines per row, each with the cells of its columns
    ALTERNATIVES = "alternatives"  # a line per row, all such tables under the same columns; as many as fit


@dataclass(frozen=True, slots=True)
class Number:
    """A value in `unit`: an SI base unit, `B`, `×` of a ratio, `%` of a fraction, `p`, or none of a count.

    `±`: half the width of an interval, as a fraction of its middle.

    `low` and `high` are its 95 % interval. `signed`: a difference. `exact`: chosen, as a threshold is.
    """

    value: float
    unit: str = ""
    low: float | None = None
    high: float | None = None
    signed: bool = False
    exact: bool = False

    def __str__(self) -> str:
        if self.signed:
            return fmt.signed(self.value, self.unit)
        if self.exact and self.unit == "%":
            return fmt.limit(self.value)
        return fmt.quantity_with_interval(self.value, self.unit, self.low, self.high)


@dataclass(frozen=True, slots=True)
class Gauge:
    """A share of the largest of its table, drawn as a bar. It says nothing that a number does not."""

    share: float  # 0 to 1

    def __str__(self) -> str:
        return fmt.bar(self.share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A value on a ruler, with its 95 % interval. The backend chooses the colour and the shape.

    `value`: None where the processes disagree. `is_open`: it decides nothing. `processes`: the samples of
    each process, in the mark's unit.
    """

    label: str
    backend: str
    value: float | None
    low: float | None = None
    high: float | None = None
    is_open: bool = False
    processes: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Spread:
    """Marks on the ruler that a column shares. It has no text: the numbers beside it say the same."""

    marks: tuple[Mark, ...]
    unit: str

    def __str__(self) -> str:
        return ""


Part = str | Number | Gauge | Spread


@dataclass(frozen=True, slots=True)
class Cell:
    """Texts and numbers, read one after the other.

    `unsure`: it cannot be told from what it is compared with. `footnotes`: what is said of it below.
    `short`: a text to show instead where there is little room.
    """

    parts: tuple[Part, ...] = ()
    tone: Tone = Tone.PLAIN
    unsure: bool = False
    footnotes: tuple[str, ...] = ()
    short: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (*map(str, self.parts), "?" if self.unsure else "")))


Content = Cell | Part | int | None


def cell(content: Content) -> Cell:
    """A text, a count or a number as a cell; None is an empty one."""
    if isinstance(content, Cell):
        return content
    if content is None or content == "":
        return Cell()
    return Cell((Number(content) if isinstance(content, int | float) else content,))


def number(value: float | None, unit: str, low: float | None = None, high: float | None = None) -> Cell:
    """A cell of one number, empty where the value is not known."""
    return Cell() if value is None else Cell((Number(value, unit, low, high),))


def number_or_dash(value: float | None, unit: str) -> Cell:
    """A cell of one number, a dash where the value is not known."""
    return Cell(("–",)) if value is None else number(value, unit)


@dataclass(frozen=True, slots=True)
class Column:
    """`line` and `label` are for paragraphs: the line of its cells, and what is written before each.

    `rank` is for alternatives: where room is short, columns of a higher rank go first.
    """

    name: str
    line: int = 0
    label: str = ""
    rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Cells under columns. A cell that is None belongs to a column that has nothing to do with the row.

    `short_title`: where the whole one does not fit.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell | None, ...], ...]
    layout: Layout = Layout.GRID
    title: str = ""
    short_title: str = ""
    facts: tuple[str, ...] = ()  # before the rows
    notes: tuple[str, ...] = ()  # after them
    commands: tuple[str, ...] = ()  # that measure each row again; none, or one for each row

    @property
    def cells(self) -> Iterator[Cell]:
        """All cells, row by row."""
        return (cell for row in self.rows for cell in row if cell)


def without_empty(rows: Sequence[Mapping[str, Content]]) -> list[Mapping[str, Content]]:
    """Rows without the columns that say nothing in any."""
    used = {name for row in rows for name, content in row.items() if cell(content).parts}
    return [{name: content for name, content in row.items() if name in used} for row in rows]


def table(
    rows: Iterable[Mapping[str, Content]],
    columns: Sequence[Column] = (),
    *,
    layout: Layout = Layout.GRID,
    title: str = "",
    short_title: str = "",
    facts: Iterable[str] = (),
    notes: Iterable[str] = (),
) -> Table:
    """A table of rows by column name; without `columns`, those of the first row."""
    rows = list(rows)
    known = tuple(columns) or tuple(map(Column, rows[0] if rows else ()))
    return Table(
        columns=known,
        rows=tuple(tuple(cell(row.get(column.name)) for column in known) for row in rows),
        layout=layout,
        title=title,
        short_title=short_title,
        facts=tuple(facts),
        notes=tuple(notes),
    )


def paragraph(columns: Sequence[Column], row: Sequence[Cell | None]) -> list[str]:
    """The lines of a row, each with its cells and their labels; a line without a cell is left out."""
    lines: dict[int, list[str]] = {}
    for column, each in zip(columns, row, strict=True):
        text = str(each or "")
        if text:
            lines.setdefault(column.line, []).append(f"{column.label} {text}".strip())
    return ["  ".join(lines[number]) for number in sorted(lines)]


@dataclass(frozen=True, slots=True)
class Records:
    """Rows for a spreadsheet, each with a value for all `names`."""

    names: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The answer of a verb. `name` is what its files are called, such as `report`.

    `answer` is what a reader wants to know, shown first. `facts` say what the document is about, `notes` how
    to read it. `headline` is the finding in a line, if none of these says it.
    `cautions` are those of the facts that a reader must know first. `overview` says in tables what a
    format that draws shows before the others. `data` is the same
    for programs, of dicts, lists, texts, numbers and None; its keys are stable (docs/cli.md). A
    spreadsheet gets its `records`, without them its tables.
    """

    name: str
    title: str
    headline: str = ""
    answer: tuple[Cell, ...] = ()
    cautions: tuple[str, ...] = ()
    overview: tuple[Table, ...] = ()
    facts: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()
    notes: tuple[str, ...] = ()
    data: Any = None
    records: Records | None = None

    @property
    def finding(self) -> str:
        """What the document comes to, in one line."""
        first = [str(each) for each in self.answer[:1]]
        return next(filter(None, (self.headline, *first)), self.title)

    @property
    def footnotes(self) -> tuple[str, ...]:
        """The footnotes of all cells, in the order in which they come."""
        cells = (cell for table in self.tables for cell in table.cells)
        return tuple(dict.fromkeys(text for cell in cells for text in cell.footnotes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One alternative of a panel; `status` is why it has no value. A backend has one colour in all plots.

    `is_open`: it decides nothing.
    """

    label: str
    backend: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    status: str = ""
    is_open: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """A panel of bars, the longer the better, and the longest first."""

    title: str
    unit: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip(Bar):
    """Every sample in seconds, process by process; the bar's value is their headline."""

    processes: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Strips:
    """A panel of samples, the shorter the better, and the shortest first."""

    title: str
    strips: tuple[Strip, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedValue:
    """A value and its interval at a size; `is_open`: it decides nothing."""

    size: float
    value: float
    low: float | None = None
    high: float | None = None
    is_open: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """An alternative's values over sizes, smallest first; `knee`: where they stop rising, if they do."""

    label: str
    backend: str
    points: tuple[SizedValue, ...]
    knee: SizedValue | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweeps:
    """A panel of alternatives over sizes, on logarithmic axes; `axis` names the size: `m = n = k`.

    `finding`: what it shows, in a sentence; `details`: what else.
    """

    title: str
    finding: str = ""
    details: str = ""
    axis: str
    unit: str
    sweeps: tuple[Sweep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendPoint:
    """A run, or a value of a tag: what it is called, its value, and that of each process."""

    name: str
    started: str
    value: float
    processes: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendLine:
    """A panel of one case; `boundaries` are the first points on other hardware.

    `by_time`: points stand where they happened, else one after the other.
    """

    title: str
    backend: str
    unit: str
    points: tuple[TrendPoint, ...]
    history: History
    boundaries: tuple[int, ...]
    by_time: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedPoint:
    """Hardware at its price, and its rate; `dominated`: something else is no dearer and no slower."""

    label: str
    price: float
    value: float
    low: float | None
    high: float | None
    dominated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PricePanel:
    """Rates against prices, cheapest first."""

    title: str
    price_unit: str
    unit: str
    points: tuple[PricedPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """What a device can do, by whom: FLOP/s where work is dense, else B/s times its FLOPs for each byte."""

    label: str
    flops_per_s: float
    bytes_per_s: float

    def at(self, flops_per_byte: float) -> float:
        """FLOP/s that can be had at most (Williams, Waterman & Patterson 2009)."""
        return min(self.flops_per_s, flops_per_byte * self.bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoofPoint:
    """An alternative of a work: its FLOP/s and its FLOPs for each byte; `is_open`: it decides nothing."""

    label: str
    work: str
    backend: str
    flops_per_byte: float
    value: float
    low: float | None
    high: float | None
    is_open: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """A panel of one device and dtype, on logarithmic axes. `finding` is of the first of its roofs."""

    title: str
    finding: str
    roofs: tuple[Roof, ...]
    points: tuple[RoofPoint, ...]


Panel = Bars | Strips | Sweeps | Roofline | TrendLine | PricePanel
PAGE = 24  # panels of a picture that can still be looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Panels of one kind and one unit. `name` is that of its file, `reading` says what the marks mean.

    `title`: the finding, where there is one. `shared`: what is drawn, and what all panels have in common.
    `facts`: on what it was measured, with what, and when. `empty`: what is said where there is no panel.
    `page`: of a plot that has more panels than one picture can show; `more`: those that are on others.
    """

    name: str
    title: str
    shared: str = ""
    facts: tuple[str, ...]
    reading: str
    empty: str
    panels: tuple[Panel, ...]
    page: int = 1
    more: int = 0


def paged(plot: Plot) -> tuple[Plot, ...]:
    """The plot, or where it has too many panels for one picture several: `latency`, `latency-2`."""
    starts = range(0, len(plot.panels), PAGE)
    if len(starts) <= 1:
        return (plot,)
    return tuple(
        replace(
            plot,
            name=plot.name if page == 1 else f"{plot.name}-{page}",
            title=f"{plot.title}, page {page} of {len(starts)}",
            panels=plot.panels[start : start + PAGE],
            page=page,
            more=len(plot.panels) - len(plot.panels[start : start + PAGE]),
        )
        for page, start in enumerate(starts, start=1)
    )


def select_plots(plots: Sequence[Plot], names: Sequence[str]) -> tuple[Plot, ...]:
    """The plots of these names; none means all. Raises UsageError."""
    known = [plot.name for plot in plots]
    for name in names:
        if name not in known:
            raise UsageError(f"There is no plot named {name!r}.", unknown("plots", name, known))
    return tuple(plot for plot in plots if not names or plot.name in names)
