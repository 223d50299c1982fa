"""The question a run answers: who is fastest, in how many works, by how much; what would tell the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchbench.documents.document import Cell, Number, Part
from benchbench.documents.run_works import Work
from benchbench.format import count_of
from benchbench.judging.ranking import ALIKE, Rival, Standing
from benchbench.model.run import Run
from benchbench.running.observer import duration

SHOWN = 5  # works that are open, each with its reason: the others are counted


def fastest_lines(works: Sequence[Work], run: Run) -> list[Cell]:
    """`torch is fastest in 3 of 6, jax in 2; 1 undecided`, and what would tell the undecided.

    Nothing where nothing is compared.
    """
    compared = [work for work in works if work.verdict.others]
    if not compared:
        return []
    undecided = [work for work in compared if work.verdict.standing is Standing.OPEN]
    lines = [_summary(compared), *(_open(work, run) for work in undecided[:SHOWN])]
    if more := len(undecided) - SHOWN:
        lines += [Cell((f"and {count_of(more, 'work')} more, marked ? below",))] if more > 0 else []
    return lines


def _summary(compared: Sequence[Work]) -> Cell:
    standings = Counter(work.verdict.standing for work in compared)
    tied, undecided = standings[Standing.TIED], standings[Standing.OPEN]
    if undecided == len(compared):
        where = f" in any of {undecided}" if undecided > 1 else ""
        return Cell((f"cannot tell which is fastest{where}",))
    won = Counter(work.verdict.winner for work in compared if work.verdict.winner)
    named = [f"{name} in {count}" for name, count in won.most_common()]
    parts: list[Part] = []
    if named:
        named[0] = named[0].replace(" in ", " is fastest in ", 1) + f" of {len(compared)}"
        least = min(work.verdict.least_lead for work in compared if work.verdict.winner)
        parts += [", ".join(named) + ", by at least", Number(least, "×")]
        if beside := sum(work.verdict.disturbed for work in compared if work.verdict.winner):
            parts.append(f"({beside} beside what others computed)")
    alike = f"as fast as each other within {ALIKE:.0%} in {tied}{'' if named else f' of {len(compared)}'}"
    rest = [*([alike] if tied else []), *([f"{undecided} undecided"] if undecided else [])]
    separated = [f"({each})" for each in rest] if named else ["; ".join(rest)]
    return Cell((*parts, *separated))


def _open(work: Work, run: Run) -> Cell:
    """`gemm m=64: jax leads torch by 1.07× (0.98× to 1.16×): about 2 more rounds, 40 s, would tell`."""
    verdict, nearest = work.verdict, work.verdict.undecided[0]
    assert verdict.fastest
    leader, rival = (verdict.name(each) for each in (verdict.fastest, nearest.contender))
    ends = nearest.interval
    interval = f"({Number(ends[0], '×')} to {Number(ends[1], '×')})" if ends else ""
    leads = f"{work.short_title}: {leader} leads {rival} by"
    return Cell((leads, Number(nearest.ratio, "×"), f"{interval}: {_remedy(work, run)}".lstrip(": ")))


def _remedy(work: Work, run: Run) -> str:
    undecided = work.verdict.undecided
    if any(each.difference is None for each in undecided):
        return "too few rounds"
    if doubted := [work.verdict.name(each.contender) for each in undecided if each.is_doubted]:
        return f"others or warming up may have slowed {', '.join(doubted)}"
    needed = [each.rounds_to_tell(run.info.policy) for each in undecided]
    if None in needed:
        return "no number of rounds would tell such a lead"
    more = max(each or 0 for each in needed) - max(each.rounds for each in undecided)
    cost_s = more * _round_s(work, run)
    cost = f", {duration(cost_s)}," if cost_s else ""
    return f"about {count_of(more, 'more round')}{cost} would tell"


def _round_s(work: Work, run: Run) -> float:
    """Seconds of a round of the cases that may be fastest."""
    verdict = work.verdict
    asked = {each.contender.case.id for each in verdict.undecided}
    asked |= {verdict.fastest.case.id} if verdict.fastest else set()
    costs = {each.case.id: each.stages_s.get("wall", 0.0) for each in run.records if each.case.id in asked}
    return sum(costs.values())


def work_data(work: Work) -> dict[str, Any]:
    """The verdict for programs: `standing` is won, tied, open, alone or none."""
    verdict = work.verdict
    return {
        "work": work.title,
        "standing": str(verdict.standing),
        "fastest": verdict.fastest.case.id if verdict.fastest else None,
        "winner": verdict.winner or None,
        "disturbed": verdict.disturbed,
        "rivals": [_rival_data(each) for each in verdict.rivals],
    }


def _rival_data(rival: Rival) -> dict[str, Any]:
    low, high = rival.interval or (None, None)
    return {
        "case": rival.contender.case.id,
        "ratio": rival.ratio,
        "low": low,
        "high": high,
        "p": rival.p,
        "slower": rival.slower,
        "rounds": rival.rounds,
        "rounds_left_out": rival.pairs.left_out,
    }
