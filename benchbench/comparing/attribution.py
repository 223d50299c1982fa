"""Which operators stand behind a slower case, where both runs were profiled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchbench import format as fmt
from benchbench.analyse.digest import SETTLED
from benchbench.comparing.verdicts import Comparison
from benchbench.model.profile import Profile
from benchbench.model.status import Verdict
from benchbench.profiling.tables import Table, difference, table
from benchbench.store import artifacts

MOST = 3  # operators named; `accelbench profile REF NEW` has all


def blamed(found: Comparison, ref: Path, new: Path) -> Comparison:
    """`found`, whose slower cases name the operators that take longer now, the most seconds first.

    `ref`, `new`: the folders of the runs. Only what a step takes is made of operators: other metrics are
    left as they are.
    """
    slower = any(each.verdict is Verdict.SLOWER for each in found.verdicts)
    if found.metric.name not in SETTLED or not slower:
        return found
    before, after = _tables(ref), _tables(new)
    verdicts = tuple(
        replace(each, operators=_longer(before[each.case], after[each.case]))
        if each.verdict is Verdict.SLOWER and each.case in before and each.case in after
        else each
        for each in found.verdicts
    )
    return replace(found, verdicts=verdicts)


def _tables(run: Path) -> dict[str, Table]:
    profiles, _ = artifacts.profiles(run)
    made = (table(each, each.outcome, None) for each in profiles if isinstance(each.outcome, Profile))
    return {each.case: each for each in made}


def _longer(ref: Table, new: Table) -> tuple[str, ...]:
    changes = [each for each in difference(ref, new).changes if each.change_s > 0]
    return tuple(f"{each.name} +{fmt.seconds(each.change_s)}" for each in changes[:MOST])
