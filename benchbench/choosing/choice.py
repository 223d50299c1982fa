"""Choice of hardware per work and overall, by speed, price and energy. Pure.

Runs of several machines give the fastest, cheapest and most frugal hardware of each work, the hardware that
may be as good, and the offers that no other offer beats in both speed and price.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    gap,
    logs_by_day,
    mean_log,
    read_evidence,
)
from benchbench.judging.comparison import ALPHA
from benchbench.judging.ranking import claim_p
from benchbench.judging.sessions import ASSUMED_DEDICATED, ASSUMED_SHARED
from benchbench.model.case import Case
from benchbench.model.run import Run
from benchbench.stats import Difference, LogEstimate, holm, mean
from benchbench.summaries import RunSummary

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareComparison:
    """Comparison of hardware, with one of `choices` per work.

    `overall`: offers of priced hardware over the works measured on all of it; `common_works`: their number.
    `assumed`: spread of days and machines that is assumed while too few were measured, as a fraction.
    """

    runs: tuple[str, ...]
    evidence: Evidence
    choices: tuple[WorkChoice, ...]
    overall: tuple[Offer, ...]
    common_works: int
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
    """Compare the hardware of runs, which may have any order.

    `cases`: parts of case ids, or patterns of whole ids. `by`: the tag that names machines. `dedicated`: no
    other programs run on the machines, so that a smaller spread of days is assumed. Raises UsageError if no
    run has the tag.
    """
    evidence = read_evidence(runs, cases, by)
    assumed = ASSUMED_DEDICATED if dedicated else ASSUMED_SHARED
    choices = work_choices(evidence.sessions, prices, assumed)
    overall, common = overall_offers(choices, prices)
    return HardwareComparison(
        runs=evidence.runs,
        evidence=evidence,
        choices=tuple(choices),
        overall=tuple(overall),
        common_works=common,
        prices=prices,
        assumed=assumed,
    )


class Aim(StrEnum):
    """Criterion for hardware: least time, money or energy for an item."""

    FASTEST = "fastest"
    CHEAPEST = "cheapest"
    FRUGAL = "most frugal"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSize:
    """Number of machines, days and processes behind the numbers of a hardware in one work."""

    machines: int
    days: int
    processes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkChoice:
    """A work on all hardware that did it, with a ranking for each aim.

    `case`: one of the work's cases. `item`: unit of its result, such as `image`.
    """

    work: str
    case: Case
    item: str
    rankings: Mapping[Aim, Ranking]
    sample_sizes: Mapping[Hardware, SampleSize]


def price_of(hardware: Hardware, prices: Prices | None) -> float | None:
    """Price of an hour of the hardware; None if unknown.

    The price of the device with its threads, `Example CPU, 2 threads`, precedes that of the device. Several
    devices cost the price given for their number, or a multiple of one device's price.
    """
    if prices is None:
        return None
    labelled = prices.price_of(hardware.name, hardware.count)
    return prices.price_of(hardware.device, hardware.count) if labelled is None else labelled


def work_choices(sessions: Sequence[CaseSession], prices: Prices | None, assumed: float) -> list[WorkChoice]:
    """A choice for each work, in the order of the works; `assumed`: as for `mean_log`.

    Each hardware is ranked by its best configuration (framework and mode) for the aim.
    """
    works = _group_by(sessions, lambda session: session.work)
    contenders = {
        Aim.FASTEST: [_contenders(work_sessions, LATENCY, assumed) for work_sessions in works.values()],
        Aim.FRUGAL: [_contenders(work_sessions, ENERGY, assumed) for work_sessions in works.values()],
    }
    contenders[Aim.CHEAPEST] = [_with_price(fastest, prices) for fastest in contenders[Aim.FASTEST]]
    rankings = {aim: rank_works(contenders[aim]) for aim in Aim}
    return [
        WorkChoice(
            work=work,
            case=work_sessions[0].case,
            item=work_sessions[0].digest.cost.item if work_sessions[0].digest.cost else "item",
            rankings={aim: rankings[aim][number] for aim in Aim},
            sample_sizes={
                hardware: _sample_size(hardware_sessions)
                for hardware, hardware_sessions in _group_by(
                    work_sessions, lambda session: session.hardware
                ).items()
            },
        )
        for number, (work, work_sessions) in enumerate(works.items())
    ]


def _group_by(
    sessions: Sequence[CaseSession], key: Callable[[CaseSession], Key]
) -> dict[Key, list[CaseSession]]:
    groups: dict[Key, list[CaseSession]] = {}
    for session in sessions:
        groups.setdefault(key(session), []).append(session)
    return groups


def _contenders(sessions: Sequence[CaseSession], metric: Metric, assumed: float) -> list[RankedHardware]:
    """RankedHardware of each hardware with a value of the metric: its best configuration."""
    contenders: list[RankedHardware] = []
    for hardware, hardware_sessions in _group_by(sessions, lambda session: session.hardware).items():
        configurations = _group_by(hardware_sessions, lambda session: session.configuration)
        candidates = [
            contender
            for name, group in configurations.items()
            if (contender := _contender(hardware, name, group, metric, assumed))
        ]
        if candidates:
            best = min(candidates, key=lambda candidate: (candidate.amount.mid, candidate.configuration))
            contenders.append(best)
    return contenders


def _contender(
    hardware: Hardware, configuration: str, sessions: Sequence[CaseSession], metric: Metric, assumed: float
) -> RankedHardware | None:
    cost = sessions[0].digest.cost
    days = logs_by_day(sessions, metric)
    if not days or not cost or not cost.items:
        return None
    amount = _shifted(mean_log(days, assumed), -math.log(cost.items))
    return RankedHardware(hardware=hardware, configuration=configuration, amount=amount)


def _shifted(amount: LogEstimate, log: float) -> LogEstimate:
    """The amount times an exactly known factor."""
    return replace(amount, mid=amount.mid + log)


def _with_price(contenders: Sequence[RankedHardware], prices: Prices | None) -> list[RankedHardware]:
    """Contenders with a price, by money for an item: the price of an hour times the time."""
    return [
        replace(contender, amount=_shifted(contender.amount, math.log(price / HOUR_S)))
        for contender in contenders
        if (price := price_of(contender.hardware, prices))
    ]


def _sample_size(sessions: Sequence[CaseSession]) -> SampleSize:
    """Sample size of the configuration that was measured most."""
    configurations = _group_by(sessions, lambda session: session.configuration).values()
    candidates = [(logs_by_day(group, LATENCY), group) for group in configurations]
    days, group = max(candidates, key=lambda item: sum(map(len, item[0])))
    return SampleSize(
        machines=len({session.machine for session in group}),
        days=len(days),
        processes=sum(map(len, days)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedHardware:
    """Hardware in one work, by its best configuration. `amount`: time, money or energy for an item.

    `excess`: amount relative to the best, as a logarithm; None for the best. `is_tied`: True if it may be
    the best, too.
    """

    hardware: Hardware
    configuration: str
    amount: LogEstimate
    excess: Difference | None = None
    is_tied: bool = False


@dataclass(frozen=True)
class Ranking:
    """Contenders of one work, best first."""

    contenders: tuple[RankedHardware, ...]

    @cached_property
    def best(self) -> RankedHardware | None:
        """Best contender; None if there is no other, or if another may be as good."""
        others = self.contenders[1:]
        return self.contenders[0] if others and not any(other.is_tied for other in others) else None

    def of_hardware(self, hardware: Hardware) -> RankedHardware | None:
        """RankedHardware of this hardware; None if it was not measured."""
        return next((contender for contender in self.contenders if contender.hardware == hardware), None)


def rank_works(works: Sequence[Sequence[RankedHardware]]) -> list[Ranking]:
    """A ranking for each work, with an error of 0.05 over all works together.

    The best of a work is claimed only if every other contender is significantly worse, two-sided
    (`claim_p`). Over works, Holm's method is used (1979).
    """
    ordered = [_rank(contenders) for contenders in works]
    claims = [
        claim_p([contender.excess.p_either() for contender in ranked if contender.excess])
        for ranked in ordered
    ]
    adjusted = holm([p for p in claims if p is not None])
    level = ALPHA / max(1, sum(p >= ALPHA for p in adjusted))  # of the works that remain
    return [Ranking(tuple(_mark_tie(contender, level) for contender in ranked)) for ranked in ordered]


def _rank(contenders: Sequence[RankedHardware]) -> list[RankedHardware]:
    ranked = sorted(contenders, key=lambda contender: (contender.amount.mid, contender.hardware))
    return ranked[:1] + [
        replace(contender, excess=gap(ranked[0].amount, contender.amount)) for contender in ranked[1:]
    ]


def _mark_tie(contender: RankedHardware, level: float) -> RankedHardware:
    if contender.excess is None:
        return contender
    return replace(contender, is_tied=contender.excess.p_either() >= level)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Hardware at its price, with the time of an item.

    `dominated_by`: hardware that is no dearer and no slower, and better in one of the two; None if there is
    none. `is_uncertain`: True if the difference in speed is not significant.
    """

    hardware: Hardware
    price: float  # of an hour
    amount: LogEstimate  # logarithm of the seconds for an item
    dominated_by: Hardware | None = None
    is_uncertain: bool = False


def dominating_points(points: Sequence[tuple[float, float]]) -> list[int | None]:
    """For each (price, seconds), the index of an undominated point that dominates it; None if there is none.

    A point dominates another if it is no worse in both values and better in one. Among several, the cheapest
    is returned; among equals, the first.
    """
    front: list[int] = []
    for index in sorted(range(len(points)), key=lambda candidate: (*points[candidate], candidate)):
        if not front or points[index][1] < points[front[-1]][1] or points[index] == points[front[-1]]:
            front.append(index)
    return [
        next((candidate for candidate in front if _beats(points[candidate], points[index])), None)
        for index in range(len(points))
    ]


def _beats(point: tuple[float, float], other: tuple[float, float]) -> bool:
    return point[0] <= other[0] and point[1] <= other[1] and point != other


def offers(choice: WorkChoice, prices: Prices | None) -> list[Offer]:
    """Offers of one work, by price."""
    return compare_offers(
        Offer(hardware=contender.hardware, price=price, amount=contender.amount)
        for contender in choice.rankings[Aim.FASTEST].contenders
        if (price := price_of(contender.hardware, prices))
    )


def overall_offers(choices: Sequence[WorkChoice], prices: Prices | None) -> tuple[list[Offer], int]:
    """Offers over the works that all priced hardware did, and the number of these works.

    The amount is the geometric mean of an item's time. Its error is the mean of the works' errors: works
    share the machine and the day, so errors do not average out.
    """
    priced = {
        contender.hardware: price
        for choice in choices
        for contender in choice.rankings[Aim.FASTEST].contenders
        if (price := price_of(contender.hardware, prices))
    }
    amounts = [
        {contender.hardware: contender.amount for contender in choice.rankings[Aim.FASTEST].contenders}
        for choice in choices
    ]
    common = [work_amounts for work_amounts in amounts if priced.keys() <= work_amounts.keys()]
    if not (priced and common):
        return [], 0
    priced_offers = [
        Offer(hardware=hardware, price=price, amount=_mean_amount([work[hardware] for work in common]))
        for hardware, price in priced.items()
    ]
    return compare_offers(priced_offers), len(common)


def _mean_amount(amounts: Sequence[LogEstimate]) -> LogEstimate:
    return LogEstimate(
        mid=mean([amount.mid for amount in amounts]),
        error=mean([amount.error for amount in amounts]),
        degrees=min(amount.degrees for amount in amounts),
    )


def compare_offers(offers: Iterable[Offer]) -> list[Offer]:
    """Offers by price, each with the hardware that dominates it."""
    by_price = sorted(offers, key=lambda offer: (offer.price, offer.amount.mid))
    dominators = dominating_points([(offer.price, offer.amount.mid) for offer in by_price])
    return [
        offer if index is None else _mark_dominated(offer, by_price[index])
        for offer, index in zip(by_price, dominators, strict=True)
    ]


def _mark_dominated(offer: Offer, by: Offer) -> Offer:
    slower = gap(by.amount, offer.amount).p_above() < ALPHA
    return replace(offer, dominated_by=by.hardware, is_uncertain=not slower)


def relative_value(offer: Offer, offers: Sequence[Offer]) -> float:
    """Items per money relative to the best of the offers."""
    costs = [other.amount.mid + math.log(other.price) for other in offers]
    return math.exp(min(costs) - offer.amount.mid - math.log(offer.price))


def rate_bounds(amount: LogEstimate, scale: float = 0.0) -> tuple[float, float, float]:
    """Items per amount, such as items per second, with the ends of the 95 % interval.

    `scale`: logarithm of a divisor.
    """
    half = amount.half_width()
    middle = -amount.mid - scale
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)
