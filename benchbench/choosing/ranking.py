"""Who is best in each of several works, and who cannot be told from the best. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from benchbench.choosing.means import MeanLog, gap
from benchbench.choosing.sessions import Hardware
from benchbench.judging.comparison import ALPHA
from benchbench.judging.ranking import claim_p
from benchbench.stats import Difference


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
        """None where nothing is compared, or another may be as good."""
        others = self.contenders[1:]
        return self.contenders[0] if others and not any(other.tied for other in others) else None

    def of(self, hardware: Hardware) -> Contender | None:
        """None where it was not measured."""
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
