"""Documents: the results of commands as frozen values, which exporters render.

Texts are unescaped; each exporter escapes them for its format. Plots are data, too: values in SI base units,
drawn by the exporters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from benchbench import format as fmt
from benchbench.errors import UsageError, unknown

if TYPE_CHECKING:
    from benchbench.judging.change_points import History


class Tone(StrEnum):
    """Severity of a cell; formats with colour show it as colour."""

    PLAIN = "plain"
    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"


class Layout(StrEnum):
    """How the terminal lays out a table; other formats use a grid."""

    GRID = "grid"  # one line per row
    PARAGRAPHS = "paragraphs"  # several lines per row, set by `Column.line`
    ALTERNATIVES = "alternatives"  # one line per row, columns aligned across tables, as many as fit


@dataclass(frozen=True, slots=True)
class Number:
    """A value in `unit`: an SI base unit, `B`, `×` (ratio), `%` (fraction), `±`, `p`, or empty for a count.

    `±` is half the width of an interval, as a fraction of its midpoint. `low` and `high` are the ends of the
    95 % interval. `signed` numbers are differences. `exact` numbers are chosen, such as thresholds.
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
    """Bar whose length is `share` of the largest value in the table. It repeats a number of the row."""

    share: float  # 0 to 1

    def __str__(self) -> str:
        return fmt.bar(self.share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A value of an alternative, with its 95 % interval; the backend determines colour and shape.

    `value` is None if the processes disagree, or for the reason `status`. `is_undecided`: the difference from
    the fastest is not significant. `processes` has the samples of each process in the unit of the mark.
    """

    label: str
    backend: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    is_undecided: bool = False
    processes: tuple[tuple[float, ...], ...] = ()
    status: str = ""


@dataclass(frozen=True, slots=True)
class Spread:
    """Marks on the ruler of a column. Text formats omit it, since the neighbouring numbers are the same."""

    marks: tuple[Mark, ...]
    unit: str

    def __str__(self) -> str:
        return ""


Part = str | Number | Gauge | Spread


@dataclass(frozen=True, slots=True)
class Cell:
    """Texts and numbers, shown one after the other.

    `unsure` appends a `?`: the value is not significantly different from what it is compared with.
    `footnotes` are shown below the table. `short` is a shorter text for narrow terminals. `code`: lines of
    code below the text, which are not broken. `link`: title of the table with the details.
    """

    parts: tuple[Part, ...] = ()
    tone: Tone = Tone.PLAIN
    unsure: bool = False
    footnotes: tuple[str, ...] = ()
    short: str = ""
    code: str = ""
    link: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (*map(str, self.parts), "?" if self.unsure else "")))


Content = Cell | Part | int | None


def cell(content: Content) -> Cell:
    """Convert a text, count or number to a cell. None gives an empty cell."""
    if isinstance(content, Cell):
        return content
    if content is None or content == "":
        return Cell()
    return Cell((Number(content) if isinstance(content, int | float) else content,))


def number(value: float | None, unit: str, low: float | None = None, high: float | None = None) -> Cell:
    """Cell with one number; empty if the value is None."""
    return Cell() if value is None else Cell((Number(value, unit, low, high),))


def number_or_dash(value: float | None, unit: str) -> Cell:
    """Cell with one number; a dash if the value is None."""
    return Cell(("–",)) if value is None else number(value, unit)


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `line` and `label` apply to paragraphs: the line of its cells and the text before them.

    `rank` applies to alternatives: columns with the highest rank are omitted first if space is short.
    """

    name: str
    line: int = 0
    label: str = ""
    rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of cells. A cell is None if the column does not apply to its row.

    `short_title` replaces a title that does not fit.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell | None, ...], ...]
    layout: Layout = Layout.GRID
    title: str = ""
    short_title: str = ""
    facts: tuple[str, ...] = ()  # shown before the rows
    notes: tuple[str, ...] = ()  # shown after the rows
    commands: tuple[str, ...] = ()  # commands that repeat each row's measurement; empty, or one per row

    @property
    def cells(self) -> Iterator[Cell]:
        """Iterate over all cells, row by row."""
        return (cell for row in self.rows for cell in row if cell)


def without_empty(rows: Sequence[Mapping[str, Content]]) -> list[Mapping[str, Content]]:
    """Remove the columns that are empty in every row."""
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
    """Build a table from mappings of column name to content; `columns` defaults to those of the first row."""
    rows = list(rows)
    table_columns = tuple(columns) or tuple(map(Column, rows[0] if rows else ()))
    return Table(
        columns=table_columns,
        rows=tuple(tuple(cell(row.get(column.name)) for column in table_columns) for row in rows),
        layout=layout,
        title=title,
        short_title=short_title,
        facts=tuple(facts),
        notes=tuple(notes),
    )


def paragraph(columns: Sequence[Column], row: Sequence[Cell | None]) -> list[str]:
    """Lines of a row's paragraph, each with its labelled cells; lines without cells are omitted."""
    lines: dict[int, list[str]] = {}
    for column, cell in zip(columns, row, strict=True):
        text = str(cell or "")
        if text:
            lines.setdefault(column.line, []).append(f"{column.label} {text}".strip())
    return ["  ".join(lines[number]) for number in sorted(lines)]


@dataclass(frozen=True, slots=True)
class Records:
    """Spreadsheet rows; each has a value for every name."""

    names: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The result of a command. `name` is the base name of its files, such as `report`.

    `answer` has the main results and is shown first; `summary_line` replaces an empty one. `facts` describe
    the measurement, `notes` explain how to read it, and `cautions` are the facts that cast doubt on all
    numbers. `overview` has tables that HTML pages show first. `plots` computes the plots when they are drawn.
    `data` is the JSON form: dicts, lists, texts, numbers and None, with stable keys (docs/cli.md).
    `records` are the rows of a spreadsheet; without them it gets the tables.
    """

    name: str
    title: str
    summary_line: str = ""
    answer: tuple[Cell, ...] = ()
    cautions: tuple[str, ...] = ()
    overview: tuple[Table, ...] = ()
    facts: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    plots: Callable[[], tuple[Plot, ...]] = tuple
    notes: tuple[str, ...] = ()
    data: Any = None
    records: Records | None = None

    @property
    def summary(self) -> str:
        """The result in one line: summary line, first line of the answer, or title."""
        first = [str(line) for line in self.answer[:1]]
        return next(filter(None, (self.summary_line, *first)), self.title)

    @property
    def footnotes(self) -> tuple[str, ...]:
        """Distinct footnotes of all cells, in order of appearance."""
        cells = (cell for table in self.tables for cell in table.cells)
        return tuple(dict.fromkeys(text for cell in cells for text in cell.footnotes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """A panel of bars, longest first; longer is better."""

    title: str
    unit: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strips:
    """A panel of samples in seconds, process by process, shortest first; shorter is better."""

    title: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedValue:
    """A value at a size, with its interval. `is_undecided`: the difference is not significant."""

    size: float
    value: float
    low: float | None = None
    high: float | None = None
    is_undecided: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Values of an alternative over sizes, ascending. `knee` is where they stop rising; None if nowhere."""

    label: str
    backend: str
    points: tuple[SizedValue, ...]
    knee: SizedValue | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweeps:
    """A panel of alternatives over sizes, on logarithmic axes. `axis` names the size, such as `m = n = k`.

    `summary` is the main result as a sentence, `details` the remaining results.
    """

    title: str
    summary: str = ""
    details: str = ""
    axis: str
    unit: str
    sweeps: tuple[Sweep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendPoint:
    """A run, or a value of a tag, with its headline and the value of each process."""

    name: str
    started: str
    value: float
    processes: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendLine:
    """A panel of one case. `boundaries` are the indices of the first points on other hardware or settings.

    `by_time`: points are placed at their dates; otherwise they are evenly spaced.
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
    """Hardware with its price and rate. `dominated`: other hardware is at least as cheap and as fast."""

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
    """Roofline of a device: the lower of `flops_per_s` and `bytes_per_s` × FLOPs per byte.

    `label` is the source of the two rates.
    """

    label: str
    flops_per_s: float
    bytes_per_s: float

    def at(self, flops_per_byte: float) -> float:
        """Attainable FLOP/s at an arithmetic intensity (Williams, Waterman & Patterson 2009)."""
        return min(self.flops_per_s, flops_per_byte * self.bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoofPoint:
    """An alternative of a work on a roofline. `is_undecided`: the measurement is in doubt."""

    label: str
    work: str
    backend: str
    flops_per_byte: float
    value: float
    low: float | None
    high: float | None
    is_undecided: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """A panel of one device and dtype, on logarithmic axes. `summary` refers to the first roof."""

    title: str
    summary: str
    roofs: tuple[Roof, ...]
    points: tuple[RoofPoint, ...]


Panel = Bars | Strips | Sweeps | Roofline | TrendLine | PricePanel
MAX_PANELS = 24  # per picture


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Panels of one kind and one unit. `name` is its file name, `reading` explains the marks.

    `title` is the main result if there is one. `shared` names the plotted quantity and the common properties.
    `facts` name the hardware, versions and date. `empty` replaces the panels if there are none. A plot with
    too many panels has several pages; `page` is its number and `more` the count of panels on other pages.
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
    """Split a plot with too many panels into several: `latency`, `latency-2`."""
    starts = range(0, len(plot.panels), MAX_PANELS)
    if len(starts) <= 1:
        return (plot,)
    return tuple(
        replace(
            plot,
            name=plot.name if page == 1 else f"{plot.name}-{page}",
            title=f"{plot.title}, page {page} of {len(starts)}",
            panels=plot.panels[start : start + MAX_PANELS],
            page=page,
            more=len(plot.panels) - len(plot.panels[start : start + MAX_PANELS]),
        )
        for page, start in enumerate(starts, start=1)
    )


def select_plots(plots: Sequence[Plot], names: Sequence[str]) -> tuple[Plot, ...]:
    """Plots with these names, or all if `names` is empty. Raises UsageError."""
    available = [plot.name for plot in plots]
    for name in names:
        if name not in available:
            raise UsageError(f"There is no plot named {name!r}.", unknown("plots", name, available))
    return tuple(plot for plot in plots if not names or plot.name in names)
