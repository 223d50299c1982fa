"""Run to report: the same work of every backend side by side, as text every format can show. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchbench import format as fmt
from benchbench.analyse.metrics import COLUMNS, Row, by_case, params_text, rows, steps_s
from benchbench.analyse.pricing import Prices
from benchbench.analyse.roofline import Ceiling
from benchbench.model.case import Cache
from benchbench.model.measurement import Measurement
from benchbench.model.record import Record
from benchbench.model.run import Run, RunInfo
from benchbench.model.status import Status, Verdict
from benchbench.timing.policy import in_words

if TYPE_CHECKING:
    import pandas as pd

INLINE = 40  # a longer reason becomes a footnote
SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
CACHES = {Cache.COLD: "cold caches", Cache.ROTATE: "rotating inputs"}
UNSURE = "? intervals overlap or are missing: cannot tell"


@dataclass(frozen=True, slots=True)
class Column:
    """One way to run the work; everything in it is safe to show."""

    target: str
    version: str
    device: str
    mode: str

    @property
    def name(self) -> str:
        """`torch cpu eager`."""
        return f"{self.target} {self.place}"

    @property
    def place(self) -> str:
        """`cpu eager`."""
        return f"{self.device} {self.mode}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One case: its row, and seconds per step of each block of each process."""

    row: Row
    processes: tuple[tuple[float, ...], ...] = ()

    @property
    def ok(self) -> bool:
        """Whether it has a speed."""
        return bool(self.row["status"] == Status.OK)


@dataclass(frozen=True, slots=True)
class Line:
    """One quantity of a group: a text per column, empty where there is nothing to say."""

    label: str
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One work: a cell per column of the report, None where a column does not have it."""

    title: str
    cells: tuple[Cell | None, ...]
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseVerdict:
    """What was found out about a case, of the run or gone from it, against others; one for each metric.

    `ratio`: new / reference, where known. `text`: the evidence in a line, safe to show.
    """

    case: str
    verdict: Verdict
    ratio: float | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What every exporter starts from. All text but that in `info`, `rows` and `records` is safe to show."""

    info: RunInfo
    records: tuple[Record, ...]
    rows: pd.DataFrame
    head: tuple[str, ...]
    columns: tuple[Column, ...]
    groups: tuple[Group, ...]
    foot: tuple[str, ...]
    judged: tuple[CaseVerdict, ...] = ()


def report(
    run: Run,
    judged: Sequence[CaseVerdict] = (),
    ceilings: Sequence[Ceiling] = (),
    prices: Prices | None = None,
) -> Report:
    """The rows of `run`, and its table: one group per work, one column per target, device and mode.

    `ceilings`: what was measured on the run's machine; `prices`: of its devices.

    A column in which nothing was planned is not shown; the foot says what was left out, and why.
    """
    frame = rows(run, ceilings, prices)
    found: list[Row] = [dict(zip(COLUMNS, values, strict=True)) for values in frame.to_numpy()]
    planned = found[: len(run.info.plan)]
    shown = {_place(row) for row in planned}
    columns = _columns(planned)
    works = _works([row for row in found if _place(row) in shown], by_case(run.records), list(columns))
    footnotes = _footnotes(works.values())
    groups = tuple(
        Group(title=title, cells=cells, lines=_lines(cells, footnotes)) for (_, title), cells in works.items()
    )
    hidden = [row for row in found if _place(row) not in shown]
    return Report(
        info=run.info,
        records=run.records,
        rows=frame,
        head=_head(run, found),
        columns=tuple(columns.values()),
        groups=groups,
        foot=_foot(groups, footnotes, hidden),
        judged=tuple(judged),
    )


def _place(row: Row) -> tuple[str, str, str]:
    return row["target"], row["device"], row["mode"] or ""


def _columns(planned: Iterable[Row]) -> dict[tuple[str, str, str], Column]:
    found: dict[tuple[str, str, str], Column] = {}
    for row in planned:
        column = Column(
            *(fmt.visible(row[k] or "") for k in ("target", "framework_version", "device", "mode"))
        )
        if _place(row) not in found or not found[_place(row)].version:
            found[_place(row)] = column
    return found


def _works(
    shown: Sequence[Row], records: dict[tuple[str, str], list[Record]], places: list[tuple[str, str, str]]
) -> dict[tuple[str, str], tuple[Cell | None, ...]]:
    """(suite, title) → its cells in the order of `places`."""
    cells: dict[tuple[str, str], list[Cell | None]] = {}
    for row in shown:
        work = cells.setdefault((row["suite"], _title(row)), [None] * len(places))
        outcomes = [record.outcome for record in records.get((row["suite"], row["case"]), [])]
        processes = tuple(tuple(steps_s(o)) for o in outcomes if isinstance(o, Measurement))
        work[places.index(_place(row))] = Cell(row=row, processes=processes)
    return {key: tuple(found) for key, found in cells.items()}


def _title(row: Row) -> str:
    head = f"{row['workload']} {params_text(row['params'])}".strip()
    caches = CACHES.get(row["cache"])
    return fmt.visible(", ".join(filter(None, (head, row["dtype"], row["phase"], caches))))


def _footnotes(works: Iterable[Sequence[Cell | None]]) -> dict[str, str]:
    """Text of a footnote → its mark."""
    texts = [text for cells in works for cell in cells if cell for text in _remarks(cell)]
    return {
        text: str(number).translate(SUPERSCRIPT) for number, text in enumerate(dict.fromkeys(texts), start=1)
    }


def _remarks(cell: Cell) -> list[str]:
    """What a cell leaves to footnotes."""
    if not cell.ok:
        reason = _reason(cell)
        return [reason] if len(reason) > INLINE else []
    names = tuple(f"{name}: " for name in cell.row)  # an empty cell is seen; its reason is in JSON and CSV
    return [fmt.visible(note) for note in cell.row["notes"] if not note.startswith(names)]


def _reason(cell: Cell) -> str:
    status, message = cell.row["status"], fmt.visible(cell.row["message"])
    return f"{status}: {message}" if message else str(status)


def _lines(cells: Sequence[Cell | None], footnotes: dict[str, str]) -> tuple[Line, ...]:
    fastest = min((c for c in cells if c and c.ok), key=lambda c: float(c.row["latency_s"]), default=None)
    texts = {
        "latency": [_latency(cell, footnotes) if cell else "" for cell in cells],
        "rate": [_quantity(cell, "items_per_s") for cell in cells],
        "FLOP/s": [_quantity(cell, "flops_per_s") for cell in cells],
        "of ceiling": [_fraction(cell, "of_ceiling") for cell in cells],
        "of datasheet": [_fraction(cell, "of_datasheet") for cell in cells],
        "bound by": [_bound(cell) for cell in cells],
        "memory": [_memory(cell) for cell in cells],
        "cold start": [_quantity(cell, "cold_s") for cell in cells],
        "per cost": [_per_cost(cell) for cell in cells],
    }
    if not any(texts["FLOP/s"]):  # work that only moves data
        texts["bytes/s"] = [_quantity(cell, "bytes_per_s") for cell in cells]
    if sum(bool(cell and cell.ok) for cell in cells) > 1:
        texts["vs fastest"] = [_versus(cell, fastest) for cell in cells]
    return tuple(Line(label, tuple(found)) for label, found in texts.items() if any(found))


def _latency(cell: Cell, footnotes: dict[str, str]) -> str:
    marks = " ".join(footnotes[text] for text in _remarks(cell))
    if cell.ok:
        row = cell.row
        text = fmt.interval(row["latency_low_s"], row["latency_s"], row["latency_high_s"])
    else:
        text = str(cell.row["status"]) if marks else _reason(cell)
    return text + marks


def _quantity(cell: Cell | None, name: str) -> str:
    value = cell.row[name] if cell else None
    if cell is None or value is None:
        return ""
    if name == "items_per_s":
        return fmt.per_second(value, fmt.visible(cell.row["item"]))
    return (
        fmt.seconds(value)
        if name == "cold_s"
        else fmt.rate(value, "FLOP/s" if name == "flops_per_s" else "B/s")
    )


def _fraction(cell: Cell | None, of: str) -> str:
    """Of the FLOP/s, or of the bytes where the work only moves data."""
    value = cell.row["bytes_" + of if not cell.row["flops"] else "flops_" + of] if cell else None
    return "" if value is None else fmt.percent(value)


def _bound(cell: Cell | None) -> str:
    value = cell.row["attainable_flops_per_s"] if cell else None
    return f"{cell.row['bound']}, {fmt.rate(value, 'FLOP/s')}" if cell and value else ""


def _per_cost(cell: Cell | None) -> str:
    value = cell.row["items_per_cost"] if cell else None
    if cell is None or value is None:
        return ""
    return fmt.per(value, fmt.visible(f"{cell.row['item']}/{cell.row['currency']}"))


def _memory(cell: Cell | None) -> str:
    for where in ("device", "host"):
        value = cell.row[f"peak_{where}_bytes"] if cell else None
        if value is not None:
            return f"{fmt.size(value)} {where}"
    return ""


def _versus(cell: Cell | None, fastest: Cell | None) -> str:
    if cell is None or fastest is None or not cell.ok:
        return ""
    times = fmt.ratio(cell.row["latency_s"] / fastest.row["latency_s"])
    low, high = cell.row["latency_low_s"], fastest.row["latency_high_s"]
    apart = low is not None and high is not None and low > high
    return times if cell is fastest or apart else f"{times} ?"


def _head(run: Run, found: Sequence[Row]) -> tuple[str, ...]:
    info, machine = run.info, run.info.machine
    statuses = Counter(row["status"] for row in found)
    devices = {f"device {row['device']}: {row['device_name']}" for row in found if row["device_name"]}
    suites = dict.fromkeys(row["suite"] for row in found)
    prices = {
        f"price: {row['price_per_hour']:g} {row['currency']} an hour of {row['device_name'] or row['device']}"
        for row in found
        if row["price_per_hour"] is not None
    }
    lines = [
        f"run {info.id}, {info.started}, accelbench {info.version}",
        f"machine: {machine.cpu}, {machine.threads} threads, {machine.os}",
        *sorted(devices - {f"device cpu: {machine.cpu}"}),
        f"suites: {', '.join(suites) or 'none'}; {in_words(info.policy)}",
        f"cases: {', '.join(f'{n} {status}' for status, n in statuses.items()) or 'none'}",
        "latency with its 95 % interval over processes; FLOP/s counts 2 per multiply-add",
        *sorted(prices),
    ]
    if run.damaged:
        lines.append(f"damaged, not in this report: {'; '.join(run.damaged)}")
    return tuple(fmt.visible(line) for line in lines)


def _foot(groups: Iterable[Group], footnotes: dict[str, str], hidden: Iterable[Row]) -> tuple[str, ...]:
    lines = [f"{mark} {text}" for text, mark in footnotes.items()]
    if any(text.endswith(" ?") for group in groups for line in group.lines for text in line.texts):
        lines.append(UNSURE)
    places = Counter(f"{' '.join(_place(row))}: {row['status']}, {row['message']}" for row in hidden)
    lines += [f"left out {count}×: {fmt.visible(text)}" for text, count in places.items()]
    return tuple(lines)
