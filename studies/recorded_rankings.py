"""What stored runs say of who is fastest: the spread of pairs, works decided, winners that contradict.

    python -m studies.recorded_rankings LABEL=RESULTS…

Each RESULTS is a results folder, or a run. Of each label: by run, the works whose fastest is named now, and
those of which it was by intervals that lie apart (before); the leads of at least 1.15×, and how many of them
are named; the standard deviation of pairs in the median of all pairs, of the planned rounds alone; seconds
from the first record to the last. Then the winners that its runs name: contradicting are works with several.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchbench.analyse.metrics import LATENCY
from benchbench.analyse.rows import records_by_case
from benchbench.judging.ranking import Standing, WorkVerdict, judge_records
from benchbench.model.measurement import Measurement
from benchbench.model.run import Run
from benchbench.stats import deviation, median
from benchbench.store.runs import RUNS, read_run

LEAD = 1.15


@dataclass(frozen=True, slots=True)
class Told:
    """Of one run."""

    name: str
    works: int
    won: int
    tied: int
    apart: int
    leads: int
    leads_named: int
    spread: float
    seconds: float
    winners: Mapping[str, str]


def told(run: Run) -> Told:
    """What a run says, by today's rule and by that of before."""
    verdicts = [each for each in judge_records(run.records, run.info.policy).values() if each.compared_rivals]
    led = [each for each in verdicts if min(rival.ratio for rival in each.compared_rivals) >= LEAD]
    begun = [record.started for record in run.records]
    ends = [record.started + record.stages_s.get("wall", 0.0) for record in run.records]
    return Told(
        name=run.info.id,
        works=len(verdicts),
        won=sum(each.standing is Standing.WON for each in verdicts),
        tied=sum(each.standing is Standing.TIED for each in verdicts),
        apart=sum(_apart(each, run) for each in verdicts),
        leads=len(led),
        leads_named=sum(each.standing is Standing.WON for each in led),
        spread=median([s for each in verdicts for s in _spreads(each, run.info.policy.rounds)]),
        seconds=max(ends) - min(begun),
        winners={_name(each): each.winner for each in verdicts if each.winner},
    )


def _name(verdict: WorkVerdict) -> str:
    assert verdict.fastest
    return verdict.fastest.case.work


def _spreads(verdict: WorkVerdict, planned: int) -> Iterator[float]:
    """Of each pair's planned rounds, whatever others did."""
    assert verdict.fastest
    own = verdict.fastest.processes
    for rival in verdict.rivals:
        theirs = rival.contender.processes
        both = sorted(own.keys() & theirs.keys())
        changes = [theirs[number].log - own[number].log for number in both if number < planned]
        if len(changes) > 1:
            yield deviation(changes)


def _apart(verdict: WorkVerdict, run: Run) -> bool:
    """The rule of before: own 95 % intervals that do not overlap, of cases without any doubt."""
    assert verdict.fastest
    recorded = records_by_case(run.records)
    intervals = []
    for each in (verdict.fastest, *(rival.contender for rival in verdict.compared_rivals)):
        outcomes = [record.outcome for record in recorded[each.case.suite, each.case.id]]
        measured = [outcome for outcome in outcomes if isinstance(outcome, Measurement)]
        planned = measured[: run.info.policy.rounds]
        found = LATENCY.of_processes(planned)
        doubted = any(not process.doubt.is_undisturbed for process in each.processes.values())
        if found.low is None or found.high is None or doubted or not any(one.steady for one in planned):
            return False
        intervals.append((found.low, found.high))
    return all(intervals[0][1] < low for low, _ in intervals[1:])


def runs_in(folder: Path) -> list[Run]:
    """A run, or all of a results folder."""
    if (folder / "run.json").exists():
        return [read_run(folder)]
    return [read_run(each) for each in sorted((folder / RUNS).iterdir()) if (each / "run.json").exists()]


HEAD = "run                         works  named  tied  before  leads ≥ 1.15×, named  pair spread  seconds"


def main(given: Sequence[str]) -> None:
    for text in given:
        label, _, folder = text.partition("=")
        found = [told(run) for run in runs_in(Path(folder))]
        print(f"{label}\n{HEAD}")
        for one in found:
            print(
                f"{one.name}  {one.works:5} {one.won:6} {one.tied:5} {one.apart:7} {one.leads:14} "
                f"{one.leads_named:6} {one.spread:12.1%} {one.seconds:8.0f}"
            )
        spread = math.exp(sum(math.log(one.spread) for one in found) / len(found))
        winners: dict[str, set[str]] = {}
        for one in found:
            for work, name in one.winners.items():
                winners.setdefault(work, set()).add(name)
        contradicting = {work: sorted(names) for work, names in winners.items() if len(names) > 1}
        print(f"geometric mean of the spreads {spread:.1%}; {len(winners)} works with a winner in some run, ")
        print(f"contradicting: {contradicting or 'none'}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
