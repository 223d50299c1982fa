"""Rate against price: which hardware no other beats in both. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchbench.analyse.pricing import Prices
from benchbench.choosing.choice import Aim, WorkChoice, price_of
from benchbench.choosing.means import MeanLog, gap
from benchbench.choosing.ranking import Contender
from benchbench.choosing.sessions import Hardware
from benchbench.judging.comparison import ALPHA
from benchbench.stats import mean


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
    """For each (price, seconds) the index of one that nobody beats and that beats it, or None.

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
    """Of one work, by price."""
    contenders = choice.rankings[Aim.FASTEST].contenders
    return compared_offers([_offer(each, price_of(each.hardware, prices)) for each in contenders])


def _offer(contender: Contender, price: float | None) -> Offer | None:
    return Offer(hardware=contender.hardware, price=price, amount=contender.amount) if price else None


def overall_offers(choices: Sequence[WorkChoice], prices: Prices | None) -> tuple[list[Offer], int]:
    """By the geometric mean of an item's time, over the works that all priced hardware did; and how many.

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


def compared_offers(made: Sequence[Offer | None]) -> list[Offer]:
    """By price, each with what dominates it."""
    known = sorted((each for each in made if each), key=lambda each: (each.price, each.amount.mid))
    best = dominating([(each.price, each.amount.mid) for each in known])
    return [
        each if index is None else _dominated(each, known[index])
        for each, index in zip(known, best, strict=True)
    ]


def _dominated(offer: Offer, by: Offer) -> Offer:
    slower = gap(by.amount, offer.amount).p_above() < ALPHA
    return Offer(
        hardware=offer.hardware,
        price=offer.price,
        amount=offer.amount,
        dominated_by=by.hardware,
        unsure=not slower,
    )


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
