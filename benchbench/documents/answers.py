"""Text of a run's results: the fastest alternative of each work, its lead, and the overview of the run.

Bounds are stated only if enough cycles were undisturbed by other programs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from benchbench.analyse.rows import Row, unit_of
from benchbench.documents.document import Cell, Mark, Number, Part, Spread, Table, Tone, table
from benchbench.documents.run_table import TEXT_ITEM, Work, decode_bound, latency_s, why_no_speed
from benchbench.format import count_of
from benchbench.judging.ranking import EQUIVALENCE, Rival, Standing, WorkVerdict
from benchbench.model.case import Status

WIDEST_RATIO = 10.0  # between the ends of an interval; wider ones are not stated
MIN_SHOWN_LEAD = 1.005  # smaller leads are rounded to 1.00×
BESIDE_OTHERS = "measured beside other programs, so no bound is stated"


def works_summary(compared: Sequence[Work]) -> Cell:
    """Summary of several works, or the answer of a single one.

    `fastest: torch in 3 works, jax in 2; in 1 work the fastest are within 5 % of each other; 1 work is open`.
    """
    if len(compared) == 1:
        return answer(compared[0].verdict)
    standings = Counter(work.verdict.standing for work in compared)
    won = Counter(work.verdict.winner for work in compared if work.verdict.winner)
    parts: list[str] = []
    if won:
        (first, count), *others = won.most_common()
        counts = [f"{first} in {count_of(count, 'work')}", *(f"{name} in {times}" for name, times in others)]
        parts.append(f"fastest: {', '.join(counts)}")
    if tied := standings[Standing.TIED]:
        parts.append(f"in {count_of(tied, 'work')} the fastest are within {EQUIVALENCE:.0%} of each other")
    if undecided := standings[Standing.OPEN]:
        open_works = f"{count_of(undecided, 'work')} {'is' if undecided == 1 else 'are'} open"
        parts.append(open_works if parts else f"the fastest is not known yet: {open_works}")
    return Cell(("; ".join(parts),))


def answer(verdict: WorkVerdict) -> Cell:
    """Answer of one work, with tone GOOD if there is one fastest; empty if nothing is compared."""
    if verdict.fastest is None or not verdict.compared_rivals:
        return Cell()
    slower = [rival for rival in verdict.compared_rivals if rival.is_slower]
    if verdict.standing is Standing.WON:
        return Cell((_winner(verdict) + _slower(verdict, slower[1:], slower[:1]),), Tone.GOOD)
    remaining = _slower(verdict, slower, verdict.undecided)
    if verdict.standing is Standing.TIED:
        tied = [rival for rival in verdict.compared_rivals if not rival.is_slower]
        names = listed([verdict.name_of(verdict.fastest), *_distinct_names(verdict, tied)])
        return Cell((f"{names} are within {EQUIVALENCE:.0%}{remaining}",))
    return Cell((_candidates(verdict) + remaining,), Tone.WARNING)


def _winner(verdict: WorkVerdict) -> str:
    """`torch, 1.12× faster than jax (at least 1.04×)`."""
    assert verdict.fastest
    nearest = verdict.compared_rivals[0]
    bound = BESIDE_OTHERS if verdict.is_disturbed else f"at least {bound_text(verdict.min_lead)}"
    leader, rival = verdict.name_of(verdict.fastest), verdict.name_of(nearest.contender)
    return f"{leader}, {_times_text(nearest.ratio)} faster than {rival} ({bound})"


def _candidates(verdict: WorkVerdict) -> str:
    """`torch or openvino (torch ahead by 1.02×, at most 1.07×)`."""
    assert verdict.fastest
    leader, undecided = verdict.name_of(verdict.fastest), verdict.undecided
    names = listed(dict.fromkeys([leader, *_distinct_names(verdict, undecided)]), "or")
    ends = [rival.interval for rival in undecided if rival.interval]
    if len(ends) < len(undecided):
        return f"{names} (too few heats)"
    ahead = f"{leader} ahead by {_times_text(min(rival.ratio for rival in undecided))}"
    if verdict.is_disturbed:
        return f"{names} ({ahead}, {BESIDE_OTHERS})"
    if doubted := _distinct_names(verdict, [rival for rival in undecided if rival.is_doubted]):
        return f"{names} ({ahead}; {listed(doubted)} may have been slowed by other programs or by warming up)"
    widest = max(high for _, high in ends)
    is_known = widest <= WIDEST_RATIO * min(low for low, _ in ends)
    return f"{names} ({ahead}{f', at most {_times_text(widest)}' if is_known else ''})"


def _slower(verdict: WorkVerdict, rivals: Sequence[Rival], named: Sequence[Rival]) -> str:
    """`; jax is 1.70× slower`, or `; jax and tensorflow are 1.30× to 1.70× slower`, or an empty text.

    A backend with several modes counts by its fastest one, which may be among the `named` rivals.
    """
    ratios: dict[str, float] = {}
    already_named = _distinct_names(verdict, named)
    for rival in rivals:
        if (name := verdict.name_of(rival.contender)) not in already_named:
            ratios.setdefault(name, rival.ratio)
    if not ratios:
        return ""
    low, high = _times_text(min(ratios.values())), _times_text(max(ratios.values()))
    amount = low if low == high else f"{low} to {high}"
    return f"; {listed(ratios)} {'is' if len(ratios) == 1 else 'are'} {amount} slower"


def tokens_text(work: Work) -> str:
    """`; openvino 8.67k token/s ±3 %, 45 % of the bound 19.2k token/s`: the fastest engine's rate.

    Empty for works other than a user's language model, and without an engine.
    """
    fastest = work.verdict.fastest
    row = next((row for row in work.rows if fastest and row.case == fastest.case), None)
    if fastest is None or row is None or row.item != TEXT_ITEM or not row.is_user_model:
        return ""
    rate = row.metric("items_per_s")
    if rate.value is None:
        return ""
    unit = unit_of(row, "items_per_s")
    text = f"; {work.verdict.name_of(fastest)} {Number(rate.value, unit)}"
    if rate.low is not None and rate.high is not None:
        text += f" {Number(max(rate.high - rate.value, rate.value - rate.low) / rate.value, '±')}"
    bound = decode_bound(row)
    return text + (f", {Number(rate.value / bound, '%')} of the bound {Number(bound, unit)}" if bound else "")


def _times_text(ratio: float) -> str:
    return str(Number(ratio, "×"))


def bound_text(ratio: float) -> str:
    """The ratio with more digits if it would be rounded to 1: `1.004×`."""
    return f"{ratio:.3f}×" if 1 < ratio < MIN_SHOWN_LEAD else _times_text(ratio)


def _distinct_names(verdict: WorkVerdict, rivals: Iterable[Rival]) -> list[str]:
    return list(dict.fromkeys(verdict.name_of(rival.contender) for rival in rivals))


def listed(names: Iterable[str], joined_by: str = "and") -> str:
    """`a, b and c`."""
    *first, last = names
    return f"{', '.join(first)} {joined_by} {last}" if first else last


FASTEST = "Fastest per work"
COVERAGE = "Results per backend and device"
RULER = "times as long as the fastest"
STATUS_TONES = {Status.OK: Tone.GOOD, Status.UNSUPPORTED: Tone.PLAIN, Status.SKIPPED: Tone.PLAIN}


def overview(works: Sequence[Work], rows: Sequence[Row], answers: Sequence[Cell] = ()) -> tuple[Table, ...]:
    """Tables of the fastest alternative of each work, and of the outcomes for each target and device.

    The first has a column of answers unless `answers`, which the page shows above it, contain all.
    """
    compared = [work for work in works if work.verdict.compared_rivals]
    shown = "\n".join(map(str, answers))
    answered = all(str(answer(work.verdict)) in shown for work in compared)
    lines = [_fastest_row(work, answered=answered) for work in compared]
    return (*([table(lines, title=FASTEST)] if lines else []), _coverage_table(rows))


def _fastest_row(work: Work, *, answered: bool) -> dict[str, Cell]:
    verdict = work.verdict
    labels = dict(zip((row.case.id for row in work.rows), work.names, strict=True))
    assert verdict.fastest
    first = verdict.fastest.case
    fastest = Mark(label=labels[first.id], backend=first.backend, value=1.0, is_undecided=not verdict.winner)
    marks = [fastest, *(_rival_mark(rival, labels[rival.contender.case.id]) for rival in verdict.rivals)]
    is_tied = verdict.standing is Standing.TIED
    ratios = [part for mark in marks for part in _ratio_parts(mark, sure=is_tied or not mark.is_undecided)]
    return {
        "work": Cell((work.title,), link=work.title),
        **({} if answered else {"answer": answer(verdict)}),
        RULER: Cell((Spread(tuple(marks), "×"),)),
        "ratios": Cell(tuple(ratios[1:])),
    }


def _ratio_parts(mark: Mark, *, sure: bool) -> list[Part]:
    """Parts for a separator, a name and its ratio: `· jax jit 1.31× ?`."""
    assert mark.value is not None
    return ["·", mark.label, Number(mark.value, "×"), *([] if sure else ["?"])]


def _rival_mark(rival: Rival, label: str) -> Mark:
    low, high = rival.interval or (None, None)
    backend = rival.contender.case.backend
    return Mark(
        label=label, backend=backend, value=rival.ratio, low=low, high=high, is_undecided=not rival.is_slower
    )


def _coverage_table(rows: Sequence[Row]) -> Table:
    """Table of case counts by status for each target and device, with the reasons for missing speeds."""
    devices = dict.fromkeys((row.case.target, row.case.device) for row in rows)
    statuses = [status for status in Status if any(row.status is status for row in rows)]
    lines: list[dict[str, Cell]] = []
    for target, device in devices:
        device_rows = [row for row in rows if (row.case.target, row.case.device) == (target, device)]
        counts = Counter(row.status for row in device_rows)
        reasons = Counter(why_no_speed(row) for row in device_rows if latency_s(row) is None)
        reasons_text = [
            text if count == 1 else f"{text} ({count} cases)" for text, count in reasons.most_common()
        ]
        lines.append(
            {"backend": Cell((target,)), "device": Cell((device,))}
            | {
                str(status): Cell((Number(counts[status]),), STATUS_TONES.get(status, Tone.BAD))
                if counts[status]
                else Cell()
                for status in statuses
            }
            | {"reasons for missing results": Cell(("; ".join(reasons_text),)) if reasons_text else Cell()}
        )
    return table(lines, title=COVERAGE)
