"""What runs of several machines say about hardware, as a document."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from benchbench import format as fmt
from benchbench.analyse.rows import params_text
from benchbench.choosing.choice import (
    Aim,
    Contender,
    HardwareComparison,
    Offer,
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
NOTHING = "nothing was measured that counts"
NO_PRICES = "cheapest: no prices are given, as in --price '*H100*=2.5 EUR' --price '*EPYC*=0.4 EUR'"
ONE_PRICE = "cheapest: fewer than two of the devices have a price"
NO_JOULES = "most frugal: the joules of fewer than two devices were measured in any work"
UNSURE = "? not significantly worse than the best, over all works"
DEVICE_JOULES = "joules are those of the device alone: a GPU's host is not in them"
KEYS = {Aim.FASTEST: "items_per_s", Aim.CHEAPEST: "items_per_cost", Aim.FRUGAL: "items_per_j"}
UNITS = {Aim.FASTEST: "s", Aim.FRUGAL: "J"}  # what an item is counted by; money for the cheapest
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
    "A mark is hardware at its price, a line at it the 95 % interval of its rate. The thin line joins what "
    "nothing else beats in both; what is beaten is grey."
)
EMPTY = "there are no prices of two devices that did the same work"


def hardware_document(found: HardwareComparison, columns: Sequence[str] = ()) -> Document:
    """A table per work, and offers by price; the answer says which hardware is best how often.

    `columns`: of the tables per work. Raises UsageError.
    """
    tables = (*choice_tables(found, columns), *offer_table(found))
    return Document(
        name="hardware",
        title="Hardware",
        answer=tuple(_conclusions(found)),
        facts=tuple(_facts(found)),
        tables=tables,
        plots=price_plots(found, tuple(versions(found))),
        notes=tuple(_notes(found)),
        data=_data(found),
    )


def _facts(found: HardwareComparison) -> Iterator[str]:
    machines = {(session.cpu, session.machine) for session in found.evidence.sessions}
    days = sorted(each.started[: len("2026-01-01")] for each in found.evidence.sessions)
    when = f", {' to '.join(dict.fromkeys((days[0], days[-1])))}" if days else ""
    yield f"{count_of(len(found.runs), 'run')} of {count_of(len(machines), 'machine')}{when}"
    yield from versions(found)
    if found.prices:
        amounts = [f"{name}: {amount:g}" for name, amount in found.prices.per_hour.items()]
        yield f"prices of an hour in {found.prices.currency}: {', '.join(amounts)}"
    if few := _few_days(found):
        yield (
            f"days and machines are taken to differ by {fmt.limit(found.assumed)} "
            f"where fewer than {MIN_SESSIONS} days were measured: {', '.join(few)}"
        )


def versions(found: HardwareComparison) -> Iterator[str]:
    """`torch 2.13.0`; where hardware has different ones, each with its own."""
    known: dict[str, dict[str, dict[str, None]]] = {}
    for each in found.evidence.sessions:
        version = each.digest.version or "of unknown version"
        known.setdefault(each.case.target, {}).setdefault(version, {})[each.hardware.label] = None
    for target, told in known.items():
        if len(told) == 1:
            yield f"{target} {next(iter(told))}"
        else:
            parts = [f"{version} on {' and '.join(labels)}" for version, labels in told.items()]
            yield f"{target} differs: {'; '.join(parts)}"


def _few_days(found: HardwareComparison) -> list[str]:
    extents = [item for choice in found.choices for item in choice.sample_sizes.items()]
    return sorted({hardware.label for hardware, extent in extents if extent.days < MIN_SESSIONS})


def _notes(found: HardwareComparison) -> Iterator[str]:
    if not found.choices:
        yield NOTHING
    if single := len(found.choices) - len(contested_works(found)):
        yield f"{count_of(single, 'work')} not shown, done on one hardware only: accelbench report"
    if any(_is_open(choice.rankings[aim]) for choice in found.choices for aim in Aim):
        yield UNSURE
    if _few_days(found) and found.assumed != ASSUMED_DEDICATED:
        dedicated = fmt.limit(ASSUMED_DEDICATED)
        yield f"further days narrow the intervals; with --dedicated they are taken to differ by {dedicated}"
    if found.choices and not _compared(found, Aim.CHEAPEST):
        yield ONE_PRICE if found.prices else NO_PRICES
    if found.choices:
        yield DEVICE_JOULES if _compared(found, Aim.FRUGAL) else NO_JOULES
    for reason, count in sorted(found.evidence.left_out.items()):
        yield f"left out {count}×: {reason}"


def _compared(found: HardwareComparison, aim: Aim) -> list[Ranking]:
    """The rankings in which there is a choice."""
    rankings = [choice.rankings[aim] for choice in found.choices]
    return [ranking for ranking in rankings if len(ranking.contenders) > 1]


def _is_open(ranking: Ranking) -> bool:
    return len(ranking.contenders) > 1 and ranking.best is None


def _conclusions(found: HardwareComparison) -> Iterator[Cell]:
    """`fastest: NVIDIA H100 PCIe in 3 of 4; 1 undecided`, for each aim in which there is a choice."""
    for aim in Aim:
        if rankings := _compared(found, aim):
            told = Counter(ranking.best.hardware.label for ranking in rankings if ranking.best)
            parts = [f"{name} in {count}" for name, count in told.most_common()]
            text = f"{', '.join(parts)} of {len(rankings)}" if parts else f"none in {len(rankings)}"
            unknown = len(rankings) - told.total()
            yield Cell((f"{aim}: {text}" + (f"; {unknown} undecided" if unknown else ""),))


def _data(found: HardwareComparison) -> dict[str, Any]:
    """The data for programs: SI units, amounts of `currency`; absent values are None."""
    return {
        "schema": SCHEMA,
        "runs": found.runs,
        "assumed_spread": found.assumed,
        "currency": found.prices.currency if found.prices else None,
        "works": [_work(choice, found) for choice in found.choices],
        "common_works": found.common_works,
        "offers": [_offer(offer, found.overall) for offer in found.overall],
        "left_out": dict(found.evidence.left_out),
    }


def _work(choice: WorkChoice, found: HardwareComparison) -> dict[str, Any]:
    case = choice.case
    return {
        "work": choice.work,
        "workload": case.workload,
        "params": case.params,
        "dtype": str(case.dtype) if case.dtype else None,
        "cache": str(case.cache),
        "item": choice.item,
        "hardware": [
            _hardware(choice, each.hardware, found) for each in choice.rankings[Aim.FASTEST].contenders
        ],
    }


def _hardware(choice: WorkChoice, hardware: Hardware, found: HardwareComparison) -> dict[str, Any]:
    return {
        **_device(hardware),
        "price_per_hour": price_of(hardware, found.prices),
        **asdict(choice.sample_sizes[hardware]),
        **{KEYS[aim]: _amount(choice.rankings[aim], hardware) for aim in Aim},
    }


def _device(hardware: Hardware) -> dict[str, Any]:
    return {"device": hardware.device, "threads": hardware.threads or None, "devices": hardware.count}


def _amount(ranking: Ranking, hardware: Hardware) -> dict[str, Any] | None:
    """`best`: true of the best, null of each that may be it and where nothing is compared, else false."""
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


def _offer(offer: Offer, offers: tuple[Offer, ...]) -> dict[str, Any]:
    fastest = min(each.amount.mid for each in offers)
    value, low, high = rate_bounds(offer.amount, -fastest)
    return {
        **_device(offer.hardware),
        "price_per_hour": offer.price,
        "relative_rate": value,
        "low": low,
        "high": high,
        "relative_items_per_cost": relative_value(offer, offers),
        "dominated_by": _device(offer.dominated_by) if offer.dominated_by else None,
        "unsure": offer.is_uncertain,
    }


def choice_tables(found: HardwareComparison, names: Sequence[str] = ()) -> tuple[Table, ...]:
    """Tables of works that several did: a line for each hardware, the fastest first.

    `names`: the columns to show, as `vs-fastest`; by default those that are not empty in all tables. Raises
    UsageError.
    """
    currency = found.prices.currency if found.prices else ""
    shown = contested_works(found)
    tables = [
        [
            _choice_row(choice, contender.hardware, currency)
            for contender in choice.rankings[Aim.FASTEST].contenders
        ]
        for choice in shown
    ]
    lines = [row for rows in tables for row in rows]
    filled = [index for index in range(len(COLUMNS)) if any(str(row[1 + index]) for row in lines)]
    chosen = _chosen(names) if names else filled
    return tuple(
        Table(
            columns=(Column(""), *(COLUMNS[index] for index in chosen)),
            rows=tuple((row[0], *(row[1 + index] for index in chosen)) for row in rows),
            layout=Layout.ALTERNATIVES,
            title=work_title(choice),
            short_title=choice.work,
        )
        for choice, rows in zip(shown, tables, strict=True)
    )


def contested_works(found: HardwareComparison) -> list[WorkChoice]:
    """The works in which there is a choice."""
    return [choice for choice in found.choices if len(choice.rankings[Aim.FASTEST].contenders) > 1]


def column_names() -> list[str]:
    """The columns' names as they are typed: `vs-fastest`."""
    return [column.name.replace("± ", "interval-").replace(" ", "-") for column in COLUMNS]


def _chosen(names: Sequence[str]) -> list[int]:
    known = column_names()
    for name in names:
        if name not in known:
            raise UsageError(f"No column named {name!r}.", unknown("columns", name, known))
    return [known.index(name) for name in names]


def work_title(choice: WorkChoice) -> str:
    """The work in words: `gemm  m=64 n=64 k=64 · float32`."""
    case = choice.case
    head = f"{case.workload}  {params_text(case.params)}".rstrip()
    between = case.placement.strategy is Strategy.COLLECTIVE
    devices = f"{case.placement.devices} devices" if between else ""
    return " · ".join(filter(None, (head, case.dtype, CACHES.get(case.cache, ""), devices)))


def _choice_row(choice: WorkChoice, hardware: Hardware, currency: str) -> tuple[Cell, ...]:
    fastest = choice.rankings[Aim.FASTEST].of_hardware(hardware)
    cells: list[Cell] = [Cell((hardware.label,)), Cell((", ".join(_titles(choice, hardware)),))]
    for aim in (Aim.FASTEST, Aim.CHEAPEST, Aim.FRUGAL):
        ranking = choice.rankings[aim]
        contender = ranking.of_hardware(hardware)
        unit = f"{choice.item}/{UNITS.get(aim, currency)}"
        cells += [_rate(contender, fastest, unit), *_ratio(contender, ranking)]
    by = fastest.configuration if fastest else ""
    return (*cells, Cell((by,)), Cell((extent_text(choice.sample_sizes[hardware]),)))


def _titles(choice: WorkChoice, hardware: Hardware) -> list[str]:
    """What the hardware is best in: `fastest`; `fastest?` of each that may be."""
    return [f"{aim}{mark}" for aim in Aim if (mark := title_mark(choice.rankings[aim], hardware)) is not None]


def title_mark(ranking: Ranking, hardware: Hardware) -> str | None:
    """A mark: empty of the best, `?` of each that may be it; None of others and where nothing is compared."""
    if len(ranking.contenders) < 2:
        return None
    first = ranking.contenders[0]
    if ranking.best:
        return "" if first.hardware == hardware else None
    own = ranking.of_hardware(hardware)
    return "?" if own and (own is first or own.is_tied) else None


def _rate(contender: Contender | None, fastest: Contender | None, unit: str) -> Cell:
    """Items for an amount; a footnote where it is by another configuration than the rate."""
    if contender is None:
        return Cell()
    rate, *_ = rate_bounds(contender.amount)
    other = fastest is not None and contender.configuration != fastest.configuration
    return Cell((Number(rate, unit),), footnotes=(f"by {contender.configuration}",) if other else ())


def _ratio(contender: Contender | None, ranking: Ranking) -> tuple[Cell, Cell]:
    """The ratio of its rate to that of the best, and the wider side of its interval."""
    if contender is None or len(ranking.contenders) < 2:
        return Cell(), Cell()
    if contender.excess is None:
        tone = Tone.GOOD if ranking.best else Tone.PLAIN
        return Cell((Number(1.0, "×"),), tone, unsure=ranking.best is None), Cell()
    ratio = Number(math.exp(-contender.excess.mid), "×")
    return Cell((ratio,), unsure=contender.is_tied), Cell((around(contender.excess),))


def extent_text(extent: SampleSize) -> str:
    """The extent in words: `2 machines, 3 days, 9 processes`."""
    counts = {"machine": extent.machines, "day": extent.days, "process": extent.processes}
    return ", ".join(count_of(count, name) for name, count in counts.items())


def offer_table(found: HardwareComparison) -> tuple[Table, ...]:
    """Rate against price over the works that all priced hardware did; nothing where there is no such work."""
    if len(found.overall) < 2:
        return ()
    works = f"{found.common_works} {'work' if found.common_works == 1 else 'works'} that all of it did"
    rows = [_offer_row(offer, found) for offer in found.overall]
    columns = [Column(name) for name in OFFER_COLUMNS]
    return (table(rows, columns, title=f"Rate against price, over {works}"),)


def _offer_row(offer: Offer, found: HardwareComparison) -> dict[str, Content]:
    best = min(found.overall, key=lambda each: each.amount.mid)
    verdict = f"{offer.dominated_by.label} is no dearer and no slower" if offer.dominated_by else UNBEATEN
    return {
        "": offer.hardware.label,
        "an hour": Number(offer.price, found.prices.currency if found.prices else ""),
        "rate": Number(math.exp(-gap(best.amount, offer.amount).mid), "×"),
        "±": None if offer is best else around(gap(best.amount, offer.amount)),
        "items per cost": Number(relative_value(offer, found.overall), "×"),
        "verdict": Cell(
            (verdict,), Tone.PLAIN if offer.dominated_by else Tone.GOOD, unsure=offer.is_uncertain
        ),
    }


def around(behind: Difference) -> Number:
    """The wider side of a ratio's 95 % interval, as a fraction of it."""
    return Number(math.expm1(behind.half_width()), "±")


def price_plots(found: HardwareComparison, facts: Sequence[str]) -> tuple[Plot, ...]:
    """The plot `pareto`, without a panel where there are no prices."""
    currency = found.prices.currency if found.prices else ""
    several = len(found.overall) > 1
    overall = [_overall(found.overall, found.common_works, currency)] if several else []
    single = [
        _panel(work_title(choice), shown, currency, f"{choice.item}/s")
        for choice in found.choices
        if len(shown := offers(choice, found.prices)) > 1
    ]
    return paged(
        Plot(
            name="pareto",
            title="Rate against price (upper left is better)",
            facts=tuple(facts),
            reading=READING,
            empty=EMPTY,
            panels=(*overall, *single),
        )
    )


def _overall(shown: Sequence[Offer], common: int, currency: str) -> PricePanel:
    """The panel over all works, relative to the fastest."""
    fastest = min(each.amount.mid for each in shown)
    works = "the one work" if common == 1 else f"the geometric mean of {common} works"
    return _panel(f"{works} that all did, relative to the fastest", shown, currency, "×", -fastest)


def _panel(title: str, shown: Sequence[Offer], currency: str, unit: str, scale: float = 0.0) -> PricePanel:
    """A panel of offers; `scale`: a logarithm that rates are divided by."""
    points = []
    for offer in shown:
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
