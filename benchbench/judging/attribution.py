"""Which operators stand behind a slower case, where both runs were profiled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchbench import format as fmt
from benchbench.analyse.digest import SETTLED
from benchbench.judging.comparison import Comparison
from benchbench.model.profile import Profile
from benchbench.model.status import Verdict
from benchbench.profiling.differences import difference
from benchbench.profiling.tables import OperatorTable, operator_table
from benchbench.store import artifacts

MOST = 3  # operators named; `accelbench profile REF NEW` has all


def with_operators(comparison: Comparison, ref: Path, new: Path) -> Comparison:
    """`comparison`, whose slower cases name the operators that take longer now, the most seconds first.

    `ref`, `new`: the folders of the runs. Only what a step takes is made of operators: other metrics are
    left as they are.
    """
    slower = any(compared.verdict is Verdict.SLOWER for compared in comparison.verdicts)
    if comparison.metric.name not in SETTLED or not slower:
        return comparison
    before, after = _tables(ref), _tables(new)
    verdicts = tuple(
        replace(compared, operators=_longer(before[compared.case], after[compared.case]))
        if compared.verdict is Verdict.SLOWER and compared.case in before and compared.case in after
        else compared
        for compared in comparison.verdicts
    )
    return replace(comparison, verdicts=verdicts)


def _tables(run: Path) -> dict[str, OperatorTable]:
    profiles, _ = artifacts.read_profiles(run)
    made = (
        operator_table(profile, profile.outcome, None)
        for profile in profiles
        if isinstance(profile.outcome, Profile)
    )
    return {operators.case: operators for operators in made}


def _longer(ref: OperatorTable, new: OperatorTable) -> tuple[str, ...]:
    changes = [change for change in difference(ref, new).changes if change.change_s > 0]
    return tuple(f"{change.name} +{fmt.seconds(change.change_s)}" for change in changes[:MOST])
