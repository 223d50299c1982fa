"""Sessions of many machines → per work the fastest, the cheapest and the most frugal hardware. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from benchbench.analyse.metrics import ENERGY, LATENCY, Metric
from benchbench.analyse.pricing import HOUR_S, Prices
from benchbench.choosing.means import mean_log
from benchbench.choosing.ranking import Contender, Ranking, rank_works
from benchbench.choosing.sessions import CaseSession, Hardware, nested_days
from benchbench.model.case import Case


class Aim(StrEnum):
    """What somebody may want of hardware: least time, least money or least energy for an item."""

    FASTEST = "fastest"
    CHEAPEST = "cheapest"
    FRUGAL = "most frugal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """What the numbers of hardware in a work stand on."""

    machines: int
    days: int
    processes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkChoice:
    """One work on all hardware that did it, a ranking for each aim; `item`: what it makes, `image`.

    `case`: one of those that do it.
    """

    work: str
    case: Case
    item: str
    rankings: Mapping[Aim, Ranking]
    extents: Mapping[Hardware, Extent]


def price_of(hardware: Hardware, prices: Prices | None) -> float | None:
    """Of an hour: that of the device with its threads, `Example CPU, 2 threads`, or of the device.

    Several cost what the user says that so many cost, else so many times one.
    """
    if prices is None:
        return None
    labelled = prices.of(hardware.name, hardware.count)
    return prices.of(hardware.device, hardware.count) if labelled is None else labelled


def work_choices(sessions: Sequence[CaseSession], prices: Prices | None, assumed: float) -> list[WorkChoice]:
    """A choice for each work, in the order in which works come; `assumed`: as for `mean_log`.

    Each hardware is ranked by the best of its configurations, frameworks and modes, for the aim.
    """
    works = _grouped(sessions, lambda each: each.work)
    contenders = {
        Aim.FASTEST: [_contenders(own, LATENCY, assumed) for own in works.values()],
        Aim.FRUGAL: [_contenders(own, ENERGY, assumed) for own in works.values()],
    }
    contenders[Aim.CHEAPEST] = [_priced(fastest, prices) for fastest in contenders[Aim.FASTEST]]
    rankings = {aim: rank_works(contenders[aim]) for aim in Aim}
    return [
        WorkChoice(
            work=work,
            case=own[0].case,
            item=own[0].processes.cost.item if own[0].processes.cost else "item",
            rankings={aim: rankings[aim][number] for aim in Aim},
            extents=_extents(own),
        )
        for number, (work, own) in enumerate(works.items())
    ]


def _grouped(
    sessions: Sequence[CaseSession], key: Callable[[CaseSession], str]
) -> dict[str, list[CaseSession]]:
    groups: dict[str, list[CaseSession]] = {}
    for each in sessions:
        groups.setdefault(key(each), []).append(each)
    return groups


def _by_hardware(sessions: Sequence[CaseSession]) -> dict[Hardware, list[CaseSession]]:
    groups: dict[Hardware, list[CaseSession]] = {}
    for each in sessions:
        groups.setdefault(each.hardware, []).append(each)
    return groups


def _contenders(sessions: Sequence[CaseSession], metric: Metric, assumed: float) -> list[Contender]:
    """Each hardware that has a value of the metric, by its best configuration."""
    found: list[Contender] = []
    for hardware, own in _by_hardware(sessions).items():
        configurations = _grouped(own, lambda each: each.configuration)
        made = [_contender(hardware, name, each, metric, assumed) for name, each in configurations.items()]
        known = [each for each in made if each]
        found += [min(known, key=lambda each: (each.amount.mid, each.configuration))] if known else []
    return found


def _contender(
    hardware: Hardware, configuration: str, sessions: Sequence[CaseSession], metric: Metric, assumed: float
) -> Contender | None:
    cost = sessions[0].processes.cost
    days = nested_days(sessions, metric)
    if not days or not cost or not cost.items:
        return None
    amount = mean_log(days, assumed).plus(-math.log(cost.items))
    return Contender(hardware=hardware, configuration=configuration, amount=amount)


def _priced(contenders: Sequence[Contender], prices: Prices | None) -> list[Contender]:
    """The same by money for an item, those that have a price: an hour's price times the time."""
    priced = [(each, price_of(each.hardware, prices)) for each in contenders]
    return [
        Contender(
            hardware=each.hardware,
            configuration=each.configuration,
            amount=each.amount.plus(math.log(price / HOUR_S)),
        )
        for each, price in priced
        if price
    ]


def _extents(sessions: Sequence[CaseSession]) -> dict[Hardware, Extent]:
    return {hardware: _extent(own) for hardware, own in _by_hardware(sessions).items()}


def _extent(sessions: Sequence[CaseSession]) -> Extent:
    """Of the configuration that was measured most."""
    configurations = _grouped(sessions, lambda each: each.configuration).values()
    days = [(nested_days(own, LATENCY), own) for own in configurations]
    most, own = max(days, key=lambda item: sum(len(hour) for day in item[0] for hour in day))
    return Extent(
        machines=len({each.machine for each in own}),
        days=len(most),
        processes=sum(len(hour) for day in most for hour in day),
    )
