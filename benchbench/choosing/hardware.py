"""Runs of several machines → what they say about hardware: choices per work, offers, slow machines. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchbench.analyse.pricing import Prices
from benchbench.choosing.choice import WorkChoice, work_choices
from benchbench.choosing.pareto import Offer, overall_offers
from benchbench.choosing.sessions import Evidence, evidence_of
from benchbench.choosing.stragglers import Siblings, rank_siblings
from benchbench.judging.sessions import ASSUMED_DEDICATED, ASSUMED_SHARED
from benchbench.model.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareComparison:
    """`choices`: one for each work. `overall`: what priced hardware comes to over the works that all of it
    did, `common` of them. `siblings`: the machines of each type. `assumed`: how far days and machines were
    taken to differ where too few were measured, as a fraction.
    """

    runs: tuple[str, ...]
    evidence: Evidence
    choices: tuple[WorkChoice, ...]
    overall: tuple[Offer, ...]
    common: int
    siblings: tuple[Siblings, ...]
    prices: Prices | None
    assumed: float


def compare_hardware(
    runs: Iterable[Run],
    prices: Prices | None = None,
    *,
    cases: Sequence[str] = (),
    by: str | None = None,
    dedicated: bool = False,
) -> HardwareComparison:
    """Of runs in any order; `cases`: parts of cases' ids, or patterns of whole ones.

    `by`: the tag that names machines; `dedicated`: nobody else uses them, so that their days differ less.
    Raises UsageError where no run has the tag.
    """
    stored = list(runs)
    evidence = evidence_of(stored, cases, by)
    assumed = ASSUMED_DEDICATED if dedicated else ASSUMED_SHARED
    choices = work_choices(evidence.sessions, prices, assumed)
    overall, common = overall_offers(choices, prices)
    return HardwareComparison(
        runs=tuple(run.info.id for run in stored),
        evidence=evidence,
        choices=tuple(choices),
        overall=tuple(overall),
        common=common,
        siblings=tuple(rank_siblings(evidence.sessions, assumed)),
        prices=prices,
        assumed=assumed,
    )
