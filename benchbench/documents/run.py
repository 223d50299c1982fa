"""Run to report: the same work of every backend side by side, as text every format can show. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchbench import format as fmt
from benchbench.analyse.columns import params_text
from benchbench.analyse.metrics import steps_s
from benchbench.analyse.pricing import Prices
from benchbench.analyse.roofline import Ceiling
from benchbench.analyse.rows import Row, by_case, case_key, rows
from benchbench.model.case import Cache
from benchbench.model.measurement import Measurement
from benchbench.model.record import Record
from benchbench.model.run import Run, RunInfo
from benchbench.model.status import Verdict
from benchbench.timing.policy import in_words

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
        return self.row.ok

    @property
    def latency_s(self) -> float:
        """Of a case that is ok."""
        value = self.row.value("latency_s")
        assert value is not None
        return value


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
    rows: tuple[Row, ...]
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
    found = rows(run, ceilings, prices)
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
        rows=tuple(found),
        head=_head(run, found),
        columns=tuple(columns.values()),
        groups=groups,
        foot=_foot(groups, footnotes, hidden),
        judged=tuple(judged),
    )


def _place(row: Row) -> tuple[str, str, str]:
    return row.case.target, row.case.device, row.case.mode


def _columns(planned: Iterable[Row]) -> dict[tuple[str, str, str], Column]:
    found: dict[tuple[str, str, str], Column] = {}
    for row in planned:
        target, device, mode = map(fmt.visible, _place(row))
        column = Column(target, fmt.visible(row.framework_version or ""), device, mode)
        if _place(row) not in found or not found[_place(row)].version:
            found[_place(row)] = column
    return found


def _works(
    shown: Sequence[Row], records: dict[tuple[str, str], list[Record]], places: list[tuple[str, str, str]]
) -> dict[tuple[str, str], tuple[Cell | None, ...]]:
    """(suite, title) → its cells in the order of `places`."""
    cells: dict[tuple[str, str], list[Cell | None]] = {}
    for row in shown:
        work = cells.setdefault((row.case.suite, _title(row)), [None] * len(places))
        outcomes = [record.outcome for record in records.get(case_key(row.case), [])]
        processes = tuple(tuple(steps_s(o)) for o in outcomes if isinstance(o, Measurement))
        work[places.index(_place(row))] = Cell(row=row, processes=processes)
    return {key: tuple(found) for key, found in cells.items()}


def _title(row: Row) -> str:
    case = row.case
    head = f"{case.workload} {params_text(case.params)}".strip()
    caches = CACHES.get(case.cache) if case.dtype else None
    return fmt.visible(", ".join(filter(None, (head, case.dtype, case.phase, caches))))


def _footnotes(works: Iterable[Sequence[Cell | None]]) -> dict[str, str]:
    """Text of a footnote → its mark."""
    texts = [text for cells in works for cell in cells if cell for text in _noted(cell)]
    return {
        text: str(number).translate(SUPERSCRIPT) for number, text in enumerate(dict.fromkeys(texts), start=1)
    }


def _noted(cell: Cell) -> list[str]:
    """What a cell leaves to footnotes. Why a number of it is absent is in JSON and CSV."""
    if not cell.ok:
        reason = _reason(cell)
        return [reason] if len(reason) > INLINE else []
    return [fmt.visible(note.text) for note in cell.row.notes]


def _reason(cell: Cell) -> str:
    status, message = cell.row.status, fmt.visible(cell.row.message)
    return f"{status}: {message}" if message else str(status)


def _lines(cells: Sequence[Cell | None], footnotes: dict[str, str]) -> tuple[Line, ...]:
    fastest = min((c for c in cells if c and c.ok), key=lambda c: c.latency_s, default=None)
    texts = {
        "latency": [_latency(cell, footnotes) if cell else "" for cell in cells],
        "rate": [_quantity(cell, "items_per_s") for cell in cells],
        "FLOP/s": [_quantity(cell, "flops_per_s") for cell in cells],
        "of ceiling": [_of_ceiling(cell) for cell in cells],
        "of datasheet": [_of_datasheet(cell) for cell in cells],
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
    marks = " ".join(footnotes[text] for text in _noted(cell))
    if cell.ok:
        latency = cell.row.metric("latency_s")
        text = fmt.interval(latency.low, cell.latency_s, latency.high)
    else:
        text = str(cell.row.status) if marks else _reason(cell)
    return text + marks


def _quantity(cell: Cell | None, name: str) -> str:
    value = cell.row.value(name) if cell else None
    if cell is None or value is None:
        return ""
    if name == "items_per_s":
        return fmt.per_second(value, fmt.visible(cell.row.item or ""))
    return (
        fmt.seconds(value)
        if name == "cold_s"
        else fmt.rate(value, "FLOP/s" if name == "flops_per_s" else "B/s")
    )


def _of_ceiling(cell: Cell | None) -> str:
    """Of the FLOP/s, or of the bytes where the work only moves data."""
    if cell is None:
        return ""
    where = cell.row.position
    return _percent(where.flops_of_ceiling if _computes(cell) else where.bytes_of_ceiling)


def _of_datasheet(cell: Cell | None) -> str:
    if cell is None:
        return ""
    where = cell.row.position
    return _percent(where.flops_of_datasheet if _computes(cell) else where.bytes_of_datasheet)


def _computes(cell: Cell) -> bool:
    return bool(cell.row.cost and cell.row.cost.flops)


def _percent(value: float | None) -> str:
    return "" if value is None else fmt.percent(value)


def _bound(cell: Cell | None) -> str:
    value = cell.row.position.attainable_flops_per_s if cell else None
    return f"{cell.row.position.bound}, {fmt.rate(value, 'FLOP/s')}" if cell and value else ""


def _per_cost(cell: Cell | None) -> str:
    value = cell.row.price.items_per_cost if cell else None
    if cell is None or value is None:
        return ""
    return fmt.per(value, fmt.visible(f"{cell.row.item}/{cell.row.price.currency}"))


def _memory(cell: Cell | None) -> str:
    for where in ("device", "host"):
        value = cell.row.value(f"peak_{where}_bytes") if cell else None
        if value is not None:
            return f"{fmt.size(value)} {where}"
    return ""


def _versus(cell: Cell | None, fastest: Cell | None) -> str:
    if cell is None or fastest is None or not cell.ok:
        return ""
    times = fmt.ratio(cell.latency_s / fastest.latency_s)
    low, high = cell.row.metric("latency_s").low, fastest.row.metric("latency_s").high
    apart = low is not None and high is not None and low > high
    return times if cell is fastest or apart else f"{times} ?"


def _head(run: Run, found: Sequence[Row]) -> tuple[str, ...]:
    info, machine = run.info, run.info.machine
    statuses = Counter(row.status for row in found)
    devices = {f"device {row.case.device}: {row.device_name}" for row in found if row.device_name}
    suites = dict.fromkeys(row.case.suite for row in found)
    prices = {_price(row) for row in found if row.price.price_per_hour is not None}
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


def _price(row: Row) -> str:
    price = row.price
    return f"price: {price.price_per_hour:g} {price.currency} an hour of {row.device_name or row.case.device}"


def _foot(groups: Iterable[Group], footnotes: dict[str, str], hidden: Iterable[Row]) -> tuple[str, ...]:
    lines = [f"{mark} {text}" for text, mark in footnotes.items()]
    if any(text.endswith(" ?") for group in groups for line in group.lines for text in line.texts):
        lines.append(UNSURE)
    places = Counter(f"{' '.join(_place(row))}: {row.status}, {row.message}" for row in hidden)
    lines += [f"left out {count}×: {fmt.visible(text)}" for text, count in places.items()]
    return tuple(lines)
