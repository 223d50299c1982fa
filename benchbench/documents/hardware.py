"""What runs of several machines say about hardware, as a document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from benchbench import format as fmt
from benchbench.choosing.choice import Aim, WorkChoice, price_of
from benchbench.choosing.hardware import HardwareComparison
from benchbench.choosing.pareto import Offer, price_gain, rate_bounds
from benchbench.choosing.ranking import Ranking
from benchbench.choosing.sessions import Hardware
from benchbench.choosing.stragglers import Siblings
from benchbench.documents.document import Cell, Document
from benchbench.documents.hardware_plots import price_plots
from benchbench.documents.hardware_tables import (
    choice_tables,
    contested_works,
    offer_table,
    sibling_tables,
    title_mark,
)
from benchbench.judging.sessions import ASSUMED_DEDICATED, ENOUGH

SCHEMA = 1  # of the JSON. 1: first
NOTHING = "nothing was measured that counts"
NO_PRICES = "cheapest: no prices are given, as in --price '*H100*=2.5 EUR' --price '*EPYC*=0.4 EUR'"
ONE_PRICE = "cheapest: fewer than two of the devices have a price"
NO_JOULES = "most frugal: the joules of fewer than two devices were measured in any work"
UNSURE = "? not significantly worse than the best, over all works"
DEVICE_JOULES = "joules are those of the device alone: a GPU's host is not in them"
KEYS = {Aim.FASTEST: "items_per_s", Aim.CHEAPEST: "items_per_cost", Aim.FRUGAL: "items_per_j"}


def hardware_document(found: HardwareComparison, columns: Sequence[str] = ()) -> Document:
    """A table per work, offers by price, machines of one type; the conclusions say who is best how often.

    `columns`: of the tables per work. Raises UsageError.
    """
    tables = (*choice_tables(found, columns), *offer_table(found), *sibling_tables(found.siblings))
    return Document(
        name="hardware",
        title="Hardware",
        facts=tuple(_facts(found)),
        tables=tables,
        plots=price_plots(found, tuple(versions(found))),
        notes=tuple(_notes(found)),
        conclusions=tuple(_conclusions(found)),
        data=_data(found),
    )


def _facts(found: HardwareComparison) -> Iterator[str]:
    machines = {(each.type.cpu, each.machine) for each in found.evidence.sessions}
    days = sorted(each.started[: len("2026-01-01")] for each in found.evidence.sessions)
    when = f", {' to '.join(dict.fromkeys((days[0], days[-1])))}" if days else ""
    yield f"{_count(len(found.runs), 'run')} of {_count(len(machines), 'machine')}{when}"
    yield from versions(found)
    if found.prices:
        amounts = [f"{name}: {amount:g}" for name, amount in found.prices.per_hour.items()]
        yield f"prices of an hour in {found.prices.currency}: {', '.join(amounts)}"
    if few := _few_days(found):
        yield (
            f"days and machines are taken to differ by {fmt.limit(found.assumed)} "
            f"where fewer than {ENOUGH} days were measured: {', '.join(few)}"
        )


def _count(count: int, name: str) -> str:
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def versions(found: HardwareComparison) -> Iterator[str]:
    """`torch 2.13.0`; where hardware has different ones, each with its own."""
    known: dict[str, dict[str, dict[str, None]]] = {}
    for each in found.evidence.sessions:
        version = each.processes.version or "of unknown version"
        known.setdefault(each.case.target, {}).setdefault(version, {})[each.hardware.label] = None
    for target, told in known.items():
        if len(told) == 1:
            yield f"{target} {next(iter(told))}"
        else:
            parts = [f"{version} on {' and '.join(labels)}" for version, labels in told.items()]
            yield f"{target} differs: {'; '.join(parts)}"


def _few_days(found: HardwareComparison) -> list[str]:
    extents = [item for choice in found.choices for item in choice.extents.items()]
    return sorted({hardware.label for hardware, extent in extents if extent.days < ENOUGH})


def _notes(found: HardwareComparison) -> Iterator[str]:
    if not found.choices:
        yield NOTHING
    if single := len(found.choices) - len(contested_works(found)):
        yield f"{_count(single, 'work')} not shown, done on one hardware only: accelbench report"
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
    """Those in which there is a choice."""
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
    slow = [(each, score) for each in found.siblings for score in each.scores if score.slow]
    for each, score in slow:
        yield Cell(
            (f"slow: {score.machine}, {fmt.ratio(score.ratio)} its siblings of {each.type.hardware.label}",)
        )


def _data(found: HardwareComparison) -> dict[str, Any]:
    """For programs: SI units, amounts of `currency`; absent values are None."""
    return {
        "schema": SCHEMA,
        "runs": found.runs,
        "assumed_spread": found.assumed,
        "currency": found.prices.currency if found.prices else None,
        "works": [_work(choice, found) for choice in found.choices],
        "common_works": found.common,
        "offers": [_offer(offer, found.overall) for offer in found.overall],
        "machines": [_siblings(each) for each in found.siblings],
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
        **asdict(choice.extents[hardware]),
        **{KEYS[aim]: _amount(choice.rankings[aim], hardware) for aim in Aim},
    }


def _device(hardware: Hardware) -> dict[str, Any]:
    return {"device": hardware.device, "threads": hardware.threads or None, "devices": hardware.count}


def _amount(ranking: Ranking, hardware: Hardware) -> dict[str, Any] | None:
    """`best`: true of the best, null of each that may be it and where nothing is compared, else false."""
    contender = ranking.of(hardware)
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
        "p": contender.behind.p_above() if contender.behind else None,
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
        "relative_items_per_cost": price_gain(offer, offers),
        "dominated_by": _device(offer.dominated_by) if offer.dominated_by else None,
        "unsure": offer.unsure,
    }


def _siblings(siblings: Siblings) -> dict[str, Any]:
    return {
        "device": siblings.type.hardware.device,
        "threads": siblings.type.hardware.threads or None,
        "cpu": siblings.type.cpu,
        "hardware": siblings.type.fingerprint,
        "scores": [asdict(score) for score in siblings.scores],
    }
