"""A comparison of hardware, from runs on several machines, as a document."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from benchbench import format as fmt
from benchbench.analyse.rows import params_text
from benchbench.choosing.choice import (
    Aim,
    HardwareComparison,
    Offer,
    RankedHardware,
    Ranking,
    SampleSize,
    WorkChoice,
    offers,
    price_of,
    rate_bounds,
    relative_value,
)
from benchbench.choosing.sessions import Hardware, gap
from benchbench.documents.document import (
    Cell,
    Column,
    Content,
    Document,
    Layout,
    Number,
    Plot,
    PricedPoint,
    PricePanel,
    Table,
    Tone,
    paged,
    table,
)
from benchbench.documents.run_table import CACHES
from benchbench.errors import UsageError, unknown
from benchbench.format import count_of
from benchbench.judging.sessions import ASSUMED_DEDICATED, MIN_SESSIONS
from benchbench.model.placement import Strategy
from benchbench.stats import Difference

SCHEMA = 2  # of the JSON. 2: without `machines`
NOTHING = "no usable measurements"
NO_PRICES = "cheapest: no prices are given, as in --price '*H100*=2.5 EUR' --price '*EPYC*=0.4 EUR'"
ONE_PRICE = "cheapest: fewer than two of the devices have a price"
NO_JOULES = "most frugal: no work has energy measurements of two devices"
UNSURE = "? not significantly worse than the best, over all works"
DEVICE_JOULES = "joules are those of the device alone, without a GPU's host"
KEYS = {Aim.FASTEST: "items_per_s", Aim.CHEAPEST: "items_per_cost", Aim.FRUGAL: "items_per_j"}
UNITS = {Aim.FASTEST: "s", Aim.FRUGAL: "J"}  # denominator of a rate; the cheapest has a currency
COLUMNS = (
    Column("best in", rank=1),
    Column("rate", rank=2),
    Column("vs fastest", rank=3),
    Column("± fastest", rank=3),
    Column("per cost", rank=4),
    Column("vs cheapest", rank=5),
    Column("± cheapest", rank=10),
    Column("per joule", rank=6),
    Column("vs most frugal", rank=7),
    Column("± most frugal", rank=11),
    Column("by", rank=8),
    Column("measured", rank=9),
)
OFFER_COLUMNS = ("", "an hour", "rate", "±", "items per cost", "verdict")
UNBEATEN = "nothing is cheaper and faster"
READING = (
    "A mark is hardware at its price, a line at it the 95 % interval of its rate. The thin line joins "
    "hardware that no other beats in both price and rate; the other marks are grey."
)
EMPTY = "there are no prices of two devices that did the same work"


def hardware_document(comparison: HardwareComparison, columns: Sequence[str] = ()) -> Document:
    """Document with a table per work, a table of offers by price, and the best hardware for each aim.

    `columns` are those of the tables per work. Raises UsageError.
    """
    tables = (*choice_tables(comparison, columns), *offer_table(comparison))
    return Document(
        name="hardware",
        title="Hardware",
        answer=tuple(_conclusions(comparison)),
        facts=tuple(_facts(comparison)),
        tables=tables,
        plots=partial(price_plots, comparison),
        notes=tuple(_notes(comparison)),
        data=_data(comparison),
    )


def _facts(comparison: HardwareComparison) -> Iterator[str]:
    machines = {(session.cpu, session.machine) for session in comparison.evidence.sessions}
    days = sorted(session.started[: len("2026-01-01")] for session in comparison.evidence.sessions)
    when = f", {' to '.join(dict.fromkeys((days[0], days[-1])))}" if days else ""
    yield f"{count_of(len(comparison.runs), 'run')} of {count_of(len(machines), 'machine')}{when}"
    yield from versions(comparison)
    if comparison.prices:
        amounts = [f"{name}: {amount:g}" for name, amount in comparison.prices.per_hour.items()]
        yield f"prices of an hour in {comparison.prices.currency}: {', '.join(amounts)}"
    if few := _hardware_with_few_days(comparison):
        yield (
            f"days and machines are assumed to differ by {fmt.limit(comparison.assumed)} "
            f"where fewer than {MIN_SESSIONS} days were measured: {', '.join(few)}"
        )


def versions(comparison: HardwareComparison) -> Iterator[str]:
    """`torch 2.13.0`, or each version with its hardware if they differ."""
    labels: dict[str, dict[str, dict[str, None]]] = {}
    for session in comparison.evidence.sessions:
        version = session.digest.version or "of unknown version"
        labels.setdefault(session.case.target, {}).setdefault(version, {})[session.hardware.label] = None
    for target, labels_by_version in labels.items():
        if len(labels_by_version) == 1:
            yield f"{target} {next(iter(labels_by_version))}"
        else:
            parts = [f"{version} on {' and '.join(names)}" for version, names in labels_by_version.items()]
            yield f"{target} differs: {'; '.join(parts)}"


def _hardware_with_few_days(comparison: HardwareComparison) -> list[str]:
    """Labels of the hardware that was measured on fewer than `MIN_SESSIONS` days."""
    extents = [item for choice in comparison.choices for item in choice.sample_sizes.items()]
    return sorted({hardware.label for hardware, extent in extents if extent.days < MIN_SESSIONS})


def _notes(comparison: HardwareComparison) -> Iterator[str]:
    if not comparison.choices:
        yield NOTHING
    if single := len(comparison.choices) - len(contested_works(comparison)):
        yield f"{count_of(single, 'work')} not shown, done on one hardware only: accelbench report"
    if any(ranking.best is None for aim in Aim for ranking in _contested_rankings(comparison, aim)):
        yield UNSURE
    if _hardware_with_few_days(comparison) and comparison.assumed != ASSUMED_DEDICATED:
        dedicated = fmt.limit(ASSUMED_DEDICATED)
        yield f"further days narrow the intervals; with --dedicated they are assumed to differ by {dedicated}"
    if comparison.choices and not _contested_rankings(comparison, Aim.CHEAPEST):
        yield ONE_PRICE if comparison.prices else NO_PRICES
    if comparison.choices:
        yield DEVICE_JOULES if _contested_rankings(comparison, Aim.FRUGAL) else NO_JOULES
    for reason, count in sorted(comparison.evidence.left_out.items()):
        yield f"left out {count}×: {reason}"


def _contested_rankings(comparison: HardwareComparison, aim: Aim) -> list[Ranking]:
    """Rankings with at least two contenders."""
    rankings = [choice.rankings[aim] for choice in comparison.choices]
    return [ranking for ranking in rankings if len(ranking.contenders) > 1]


def _conclusions(comparison: HardwareComparison) -> Iterator[Cell]:
    """`fastest: NVIDIA H100 PCIe in 3 of 4; 1 undecided`, for each aim with at least two contenders."""
    for aim in Aim:
        if rankings := _contested_rankings(comparison, aim):
            wins = Counter(ranking.best.hardware.label for ranking in rankings if ranking.best)
            parts = [f"{name} in {count}" for name, count in wins.most_common()]
            text = f"{', '.join(parts)} of {len(rankings)}" if parts else f"none in {len(rankings)}"
            undecided = len(rankings) - wins.total()
            yield Cell((f"{aim}: {text}" + (f"; {undecided} undecided" if undecided else ""),))


def _data(comparison: HardwareComparison) -> dict[str, Any]:
    """JSON form in SI units and `currency`; absent values are None."""
    return {
        "schema": SCHEMA,
        "runs": comparison.runs,
        "assumed_spread": comparison.assumed,
        "currency": comparison.prices.currency if comparison.prices else None,
        "works": [_work_fields(choice, comparison) for choice in comparison.choices],
        "common_works": comparison.common_works,
        "offers": [_offer_fields(offer, comparison.overall) for offer in comparison.overall],
        "left_out": dict(comparison.evidence.left_out),
    }


def _work_fields(choice: WorkChoice, comparison: HardwareComparison) -> dict[str, Any]:
    case = choice.case
    return {
        "work": choice.work,
        "workload": case.workload,
        "params": case.params,
        "dtype": str(case.dtype) if case.dtype else None,
        "cache": str(case.cache),
        "item": choice.item,
        "hardware": [
            _hardware_fields(choice, contender.hardware, comparison)
            for contender in choice.rankings[Aim.FASTEST].contenders
        ],
    }


def _hardware_fields(
    choice: WorkChoice, hardware: Hardware, comparison: HardwareComparison
) -> dict[str, Any]:
    return {
        **_device_fields(hardware),
        "price_per_hour": price_of(hardware, comparison.prices),
        **asdict(choice.sample_sizes[hardware]),
        **{KEYS[aim]: _amount_fields(choice.rankings[aim], hardware) for aim in Aim},
    }


def _device_fields(hardware: Hardware) -> dict[str, Any]:
    return {"device": hardware.device, "threads": hardware.threads or None, "devices": hardware.count}


def _amount_fields(ranking: Ranking, hardware: Hardware) -> dict[str, Any] | None:
    """JSON form of a rate. `best` is None if the hardware may be best, or if there is no comparison."""
    contender = ranking.of_hardware(hardware)
    if contender is None:
        return None
    value, low, high = rate_bounds(contender.amount)
    best = {"": True, "?": None, None: False}[title_mark(ranking, hardware)]
    return {
        "configuration": contender.configuration,
        "value": value,
        "low": low,
        "high": high,
        "best": best if len(ranking.contenders) > 1 else None,
        "p": contender.excess.p_above() if contender.excess else None,
    }


def _offer_fields(offer: Offer, offers: tuple[Offer, ...]) -> dict[str, Any]:
    fastest = min(other.amount.mid for other in offers)
    value, low, high = rate_bounds(offer.amount, -fastest)
    return {
        **_device_fields(offer.hardware),
        "price_per_hour": offer.price,
        "relative_rate": value,
        "low": low,
        "high": high,
        "relative_items_per_cost": relative_value(offer, offers),
        "dominated_by": _device_fields(offer.dominated_by) if offer.dominated_by else None,
        "unsure": offer.is_uncertain,
    }


def choice_tables(comparison: HardwareComparison, names: Sequence[str] = ()) -> tuple[Table, ...]:
    """Tables of the works measured on several kinds of hardware, fastest first.

    `names` are column names such as `vs-fastest`; by default, all columns that are not empty. Raises
    UsageError.
    """
    currency = comparison.prices.currency if comparison.prices else ""
    choices = contested_works(comparison)
    tables = [
        [
            _choice_row(choice, contender.hardware, currency)
            for contender in choice.rankings[Aim.FASTEST].contenders
        ]
        for choice in choices
    ]
    lines = [row for rows in tables for row in rows]
    used_columns = [index for index in range(len(COLUMNS)) if any(str(row[1 + index]) for row in lines)]
    selected = _column_indices(names) if names else used_columns
    return tuple(
        Table(
            columns=(Column(""), *(COLUMNS[index] for index in selected)),
            rows=tuple((row[0], *(row[1 + index] for index in selected)) for row in rows),
            layout=Layout.ALTERNATIVES,
            title=work_title(choice),
            short_title=choice.work,
        )
        for choice, rows in zip(choices, tables, strict=True)
    )


def contested_works(comparison: HardwareComparison) -> list[WorkChoice]:
    """Works that were measured on at least two kinds of hardware."""
    return [choice for choice in comparison.choices if len(choice.rankings[Aim.FASTEST].contenders) > 1]


def column_names() -> list[str]:
    """Column names on the command line: `vs-fastest`."""
    return [column.name.replace("± ", "interval-").replace(" ", "-") for column in COLUMNS]


def _column_indices(names: Sequence[str]) -> list[int]:
    available = column_names()
    for name in names:
        if name not in available:
            raise UsageError(f"No column named {name!r}.", unknown("columns", name, available))
    return [available.index(name) for name in names]


def work_title(choice: WorkChoice) -> str:
    """Title of a work: `gemm  m=64 n=64 k=64 · float32`."""
    case = choice.case
    head = f"{case.workload}  {params_text(case.params)}".rstrip()
    is_collective = case.placement.strategy is Strategy.COLLECTIVE
    devices = f"{case.placement.devices} devices" if is_collective else ""
    return " · ".join(filter(None, (head, case.dtype, CACHES.get(case.cache, ""), devices)))


def _choice_row(choice: WorkChoice, hardware: Hardware, currency: str) -> tuple[Cell, ...]:
    fastest = choice.rankings[Aim.FASTEST].of_hardware(hardware)
    marks = {aim: title_mark(choice.rankings[aim], hardware) for aim in Aim}
    best_in = ", ".join(f"{aim}{mark}" for aim, mark in marks.items() if mark is not None)
    cells: list[Cell] = [Cell((hardware.label,)), Cell((best_in,))]
    for aim in (Aim.FASTEST, Aim.CHEAPEST, Aim.FRUGAL):
        ranking = choice.rankings[aim]
        contender = ranking.of_hardware(hardware)
        unit = f"{choice.item}/{UNITS.get(aim, currency)}"
        cells += [_rate_cell(contender, fastest, unit), *_ratio_cells(contender, ranking)]
    by = fastest.configuration if fastest else ""
    return (*cells, Cell((by,)), Cell((extent_text(choice.sample_sizes[hardware]),)))


def title_mark(ranking: Ranking, hardware: Hardware) -> str | None:
    """Mark of the hardware: empty if it is best, `?` if it may be, None otherwise or without a comparison."""
    if len(ranking.contenders) < 2:
        return None
    best = ranking.contenders[0]
    if ranking.best:
        return "" if best.hardware == hardware else None
    contender = ranking.of_hardware(hardware)
    return "?" if contender and (contender is best or contender.is_tied) else None


def _rate_cell(contender: RankedHardware | None, fastest: RankedHardware | None, unit: str) -> Cell:
    """Rate of a contender; a footnote names the configuration if it is not the fastest one."""
    if contender is None:
        return Cell()
    rate, *_ = rate_bounds(contender.amount)
    differs = fastest is not None and contender.configuration != fastest.configuration
    return Cell((Number(rate, unit),), footnotes=(f"by {contender.configuration}",) if differs else ())


def _ratio_cells(contender: RankedHardware | None, ranking: Ranking) -> tuple[Cell, Cell]:
    """Ratio of the rate to the best rate, and half the width of its interval."""
    if contender is None or len(ranking.contenders) < 2:
        return Cell(), Cell()
    if contender.excess is None:
        tone = Tone.GOOD if ranking.best else Tone.PLAIN
        return Cell((Number(1.0, "×"),), tone, unsure=ranking.best is None), Cell()
    ratio = Number(math.exp(-contender.excess.mid), "×")
    return Cell((ratio,), unsure=contender.is_tied), Cell((half_width(contender.excess),))


def extent_text(extent: SampleSize) -> str:
    """`2 machines, 3 days, 9 processes`."""
    counts = {"machine": extent.machines, "day": extent.days, "process": extent.processes}
    return ", ".join(count_of(count, name) for name, count in counts.items())


def offer_table(comparison: HardwareComparison) -> tuple[Table, ...]:
    """Table of rate against price over the works that all priced hardware did; empty without such works."""
    if len(comparison.overall) < 2:
        return ()
    works = f"{count_of(comparison.common_works, 'work')} measured on all of it"
    rows = [_offer_row(offer, comparison) for offer in comparison.overall]
    columns = [Column(name) for name in OFFER_COLUMNS]
    return (table(rows, columns, title=f"Rate against price, over {works}"),)


def _offer_row(offer: Offer, comparison: HardwareComparison) -> dict[str, Content]:
    best = min(comparison.overall, key=lambda offer: offer.amount.mid)
    verdict = f"{offer.dominated_by.label} is no dearer and no slower" if offer.dominated_by else UNBEATEN
    return {
        "": offer.hardware.label,
        "an hour": Number(offer.price, comparison.prices.currency if comparison.prices else ""),
        "rate": Number(math.exp(-gap(best.amount, offer.amount).mid), "×"),
        "±": None if offer is best else half_width(gap(best.amount, offer.amount)),
        "items per cost": Number(relative_value(offer, comparison.overall), "×"),
        "verdict": Cell(
            (verdict,), Tone.PLAIN if offer.dominated_by else Tone.GOOD, unsure=offer.is_uncertain
        ),
    }


def half_width(behind: Difference) -> Number:
    """Wider side of a ratio's 95 % interval, as a fraction of the ratio."""
    return Number(math.expm1(behind.half_width()), "±")


def price_plots(comparison: HardwareComparison) -> tuple[Plot, ...]:
    """The plot `pareto`; it has no panels without prices."""
    currency = comparison.prices.currency if comparison.prices else ""
    several = len(comparison.overall) > 1
    common = comparison.common_works
    works = "the one work" if common == 1 else f"the geometric mean of {common} works"
    title = f"{works} that all did, relative to the fastest"
    fastest = min((offer.amount.mid for offer in comparison.overall), default=0.0)
    overall = [_price_panel(title, comparison.overall, currency, "×", -fastest)] if several else []
    single = [
        _price_panel(work_title(choice), priced, currency, f"{choice.item}/s")
        for choice in comparison.choices
        if len(priced := offers(choice, comparison.prices)) > 1
    ]
    return paged(
        Plot(
            name="pareto",
            title="Rate against price (upper left is better)",
            facts=tuple(versions(comparison)),
            reading=READING,
            empty=EMPTY,
            panels=(*overall, *single),
        )
    )


def _price_panel(
    title: str, offers: Sequence[Offer], currency: str, unit: str, scale: float = 0.0
) -> PricePanel:
    """Panel of offers; `scale` is the logarithm of a rate that all rates are divided by."""
    points = []
    for offer in offers:
        value, low, high = rate_bounds(offer.amount, scale)
        points.append(
            PricedPoint(
                label=offer.hardware.label,
                price=offer.price,
                value=value,
                low=low,
                high=high,
                dominated=offer.dominated_by is not None,
            )
        )
    return PricePanel(title=title, price_unit=f"{currency} an hour", unit=unit, points=tuple(points))
