"""Compare hardware by the runs of several machines: choices per work, offers. Pure.

Per work the fastest, the cheapest and the most frugal hardware, who cannot be told from the best, and which
offer no other beats in both rate and price.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import TypeVar

from benchbench.analyse.metrics import ENERGY, LATENCY, Metric
from benchbench.analyse.pricing import HOUR_S, Prices
from benchbench.choosing.sessions import (
    CaseSession,
    Evidence,
    Hardware,
    MeanLog,
    evidence_of,
    gap,
    mean_log,
    nested_days,
)
from benchbench.judging.comparison import ALPHA
from benchbench.judging.ranking import claim_p
from benchbench.judging.sessions import ASSUMED_DEDICATED, ASSUMED_SHARED
from benchbench.model.case import Case
from benchbench.model.run import Run
from benchbench.stats import Difference, mean
from benchbench.summaries.summary import RunSummary, summaries

K = TypeVar("K")


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareComparison:
    """`choices`: one for each work. `overall`: offers of priced hardware over the works that all of it did,
    `common` of them. `assumed`: the spread of days and machines, as a fraction, where too few were measured.
    """

    runs: tuple[str, ...]
    evidence: Evidence
    choices: tuple[WorkChoice, ...]
    overall: tuple[Offer, ...]
    common: int
    prices: Prices | None
    assumed: float


def compare_hardware(
    runs: Iterable[Run | RunSummary],
    prices: Prices | None = None,
    *,
    cases: Sequence[str] = (),
    by: str | None = None,
    dedicated: bool = False,
) -> HardwareComparison:
    """What runs in any order say about hardware; `cases`: parts of cases' ids, or patterns of whole ones.

    `by`: the tag that names machines; `dedicated`: nobody else uses them, so that their days differ less.
    Raises UsageError where no run has the tag.
    """
    names: list[str] = []
    evidence = evidence_of(_named(runs, names), cases, by)
    assumed = ASSUMED_DEDICATED if dedicated else ASSUMED_SHARED
    choices = work_choices(evidence.sessions, prices, assumed)
    overall, common = overall_offers(choices, prices)
    return HardwareComparison(
        runs=tuple(names),
        evidence=evidence,
        choices=tuple(choices),
        overall=tuple(overall),
        common=common,
        prices=prices,
        assumed=assumed,
    )


def _named(runs: Iterable[Run | RunSummary], names: list[str]) -> Iterator[RunSummary]:
    """The summaries of the runs, whose ids `names` then has: not all runs fit in memory."""
    for run in summaries(runs):
        names.append(run.id)
        yield run


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
    """A work on all hardware that did it, with a ranking for each aim; `item`: what it makes, `image`.

    `case`: one of those that do it.
    """

    work: str
    case: Case
    item: str
    rankings: Mapping[Aim, Ranking]
    extents: Mapping[Hardware, Extent]


def price_of(hardware: Hardware, prices: Prices | None) -> float | None:
    """The price of an hour: of the device with its threads, `Example CPU, 2 threads`, else of the device.

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
            extents={
                hardware: _extent(measured)
                for hardware, measured in _grouped(own, lambda each: each.hardware).items()
            },
        )
        for number, (work, own) in enumerate(works.items())
    ]


def _grouped(sessions: Sequence[CaseSession], key: Callable[[CaseSession], K]) -> dict[K, list[CaseSession]]:
    groups: dict[K, list[CaseSession]] = {}
    for each in sessions:
        groups.setdefault(key(each), []).append(each)
    return groups


def _contenders(sessions: Sequence[CaseSession], metric: Metric, assumed: float) -> list[Contender]:
    """A contender for each hardware that has a value of the metric: its best configuration."""
    found: list[Contender] = []
    for hardware, own in _grouped(sessions, lambda each: each.hardware).items():
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
    """The contenders that have a price, by money for an item: an hour's price times the time."""
    return [
        replace(each, amount=each.amount.plus(math.log(price / HOUR_S)))
        for each in contenders
        if (price := price_of(each.hardware, prices))
    ]


def _extent(sessions: Sequence[CaseSession]) -> Extent:
    """The extent of the configuration that was measured most."""
    configurations = _grouped(sessions, lambda each: each.configuration).values()
    days = [(nested_days(own, LATENCY), own) for own in configurations]
    most, own = max(days, key=lambda item: sum(len(hour) for day in item[0] for hour in day))
    return Extent(
        machines=len({each.machine for each in own}),
        days=len(most),
        processes=sum(len(hour) for day in most for hour in day),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """Hardware in one work, by the best of its configurations. `amount`: of an item, less is better.

    `behind`: how much more than the best needs, None of the best. `tied`: whether it may be the best, too.
    """

    hardware: Hardware
    configuration: str
    amount: MeanLog
    behind: Difference | None = None
    tied: bool = False


@dataclass(frozen=True)
class Ranking:
    """Contenders of one work, the best first."""

    contenders: tuple[Contender, ...]

    @cached_property
    def best(self) -> Contender | None:
        """The best contender; None where nothing is compared, or another may be as good."""
        others = self.contenders[1:]
        return self.contenders[0] if others and not any(other.tied for other in others) else None

    def of(self, hardware: Hardware) -> Contender | None:
        """The contender of this hardware; None where it was not measured."""
        return next((each for each in self.contenders if each.hardware == hardware), None)


def rank_works(works: Sequence[Sequence[Contender]]) -> list[Ranking]:
    """A ranking for each work, the best told from the others at 0.05 over all works together.

    Within a work the best is claimed only if each other is told from it, two-sided (`claim_p`); over works by
    Holm (1979).
    """
    ordered = [_ordered(contenders) for contenders in works]
    claims = [claim_p([each.behind.p_either() for each in own if each.behind]) for own in ordered]
    levels = _levels(claims)
    return [
        Ranking(tuple(_marked(each, level) for each in contenders))
        for contenders, level in zip(ordered, levels, strict=True)
    ]


def _ordered(contenders: Sequence[Contender]) -> list[Contender]:
    found = sorted(contenders, key=lambda each: (each.amount.mid, each.hardware))
    return found[:1] + [replace(each, behind=gap(found[0].amount, each.amount)) for each in found[1:]]


def _levels(ps: Sequence[float | None]) -> list[float]:
    """The level at which each work is judged: Holm's, and of those without a claim that of the first."""
    known = sorted(p for p in ps if p is not None)
    levels = {}
    level = ALPHA / max(len(known), 1)
    for done, p in enumerate(known):
        level = ALPHA / (len(known) - done)
        if p >= level:
            break
        levels[p] = level
    return [ALPHA if p is None else levels.get(p, level) for p in ps]


def _marked(contender: Contender, level: float) -> Contender:
    if contender.behind is None:
        return contender
    return replace(contender, tied=contender.behind.p_either() >= level)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Hardware at its price, and the time of an item. `dominated_by`: what is no dearer and no slower, and
    better in one of the two; None: nothing. `unsure`: whether its being slower cannot be told.
    """

    hardware: Hardware
    price: float  # of an hour
    amount: MeanLog  # log seconds for an item
    dominated_by: Hardware | None = None
    unsure: bool = False


def dominating(points: Sequence[tuple[float, float]]) -> list[int | None]:
    """The index of an unbeaten point that beats the point, for each (price, seconds); None for unbeaten ones.

    One beats another if it is no worse in both and better in one. The one of least price counts; of several
    alike, the first.
    """
    front: list[int] = []
    for index in sorted(range(len(points)), key=lambda each: (*points[each], each)):
        if not front or points[index][1] < points[front[-1]][1] or points[index] == points[front[-1]]:
            front.append(index)
    return [
        next((each for each in front if _beats(points[each], points[index])), None)
        for index in range(len(points))
    ]


def _beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] <= other[0] and one[1] <= other[1] and one != other


def offers(choice: WorkChoice, prices: Prices | None) -> list[Offer]:
    """The offers of one work, by price."""
    return compared_offers(
        Offer(hardware=each.hardware, price=price, amount=each.amount)
        for each in choice.rankings[Aim.FASTEST].contenders
        if (price := price_of(each.hardware, prices))
    )


def overall_offers(choices: Sequence[WorkChoice], prices: Prices | None) -> tuple[list[Offer], int]:
    """Offers by the geometric mean of an item's time, over the works that all priced hardware did; how many.

    Its error is the mean of the works': they share the machine and the day, so errors do not average out.
    """
    priced = {
        each.hardware: price
        for choice in choices
        for each in choice.rankings[Aim.FASTEST].contenders
        if (price := price_of(each.hardware, prices))
    }
    amounts = [
        {each.hardware: each.amount for each in choice.rankings[Aim.FASTEST].contenders} for choice in choices
    ]
    common = [known for known in amounts if priced.keys() <= known.keys()]
    if not (priced and common):
        return [], 0
    made = [
        Offer(hardware=hardware, price=price, amount=_joined([work[hardware] for work in common]))
        for hardware, price in priced.items()
    ]
    return compared_offers(made), len(common)


def _joined(amounts: Sequence[MeanLog]) -> MeanLog:
    return MeanLog(
        mid=mean([each.mid for each in amounts]),
        error=mean([each.error for each in amounts]),
        degrees=min(each.degrees for each in amounts),
    )


def compared_offers(made: Iterable[Offer]) -> list[Offer]:
    """Offers by price, each with what dominates it."""
    known = sorted(made, key=lambda each: (each.price, each.amount.mid))
    best = dominating([(each.price, each.amount.mid) for each in known])
    return [
        each if index is None else _dominated(each, known[index])
        for each, index in zip(known, best, strict=True)
    ]


def _dominated(offer: Offer, by: Offer) -> Offer:
    slower = gap(by.amount, offer.amount).p_above() < ALPHA
    return replace(offer, dominated_by=by.hardware, unsure=not slower)


def price_gain(offer: Offer, offers: Sequence[Offer]) -> float:
    """Items for money, over those of the offer that gives most."""
    costs = [each.amount.mid + math.log(each.price) for each in offers]
    return math.exp(min(costs) - offer.amount.mid - math.log(offer.price))


def rate_bounds(amount: MeanLog, scale: float = 0.0) -> tuple[float, float, float]:
    """Items a second, or for an amount of anything else, with the ends of its 95 % interval.

    `scale`: a logarithm that it is divided by.
    """
    half = amount.half_width()
    middle = -amount.mid - scale
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)
