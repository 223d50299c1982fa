"""Rates over the sizes of a work: the fastest at each size, and where the rate stops rising."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, groupby

from benchbench.analyse.rows import params_text, unit_of
from benchbench.documents.document import SizedValue, Sweep, Sweeps
from benchbench.documents.run_table import Work, is_undecided
from benchbench.format import share
from benchbench.judging.ranking import EQUIVALENCE, Standing
from benchbench.model.case import Cache, Case, Scalar

KNEE_SHARE = 0.95  # of the highest rate: the knee is the smallest size that reaches it
FALLEN = 0.5  # of the highest rate: a largest size with less is reported
MAX_SPANS = 2  # stretches of sizes that are listed
MIN_SIZES = 3  # for a line
MAX_TIED = 3  # parameters that form one size, such as m = n = k
# The first known one is plotted: work and bytes grow with a size.
RATES = ("flops_per_s", "bytes_per_s", "items_per_s")
FALLBACK_RATE = "items_per_s"
UNDECIDED = {
    Standing.OPEN: "undecided",
    Standing.TIED: f"the fastest are within {EQUIVALENCE:.0%} of each other",
}
Sizes = dict[int, Work]  # works by size
Axis = tuple[str, ...]  # parameters with equal values


def size_panels(works: Sequence[Work]) -> list[Sweeps]:
    """Panels for each parameter, or group of equal parameters, that takes at least three values.

    Other parameters are equal within a panel. `works` must have their verdicts.
    """
    swept: dict[tuple[object, Axis], Sizes] = {}
    for work in works:
        case = work.rows[0].case
        for axis in _candidate_axes(case.params):
            swept.setdefault((_fixed_fields(case, axis), axis), {})[int(case.params[axis[0]])] = work
    panels = [
        _size_panel(axis, dict(sorted(sizes.items())))
        for (_, axis), sizes in swept.items()
        if len(sizes) >= MIN_SIZES
    ]
    return [panel for panel in panels if panel.sweeps]


def _candidate_axes(params: Mapping[str, Scalar]) -> Iterator[Axis]:
    """Candidate axes: each integer parameter, and groups of two or three with equal values."""
    numbers = [name for name, value in params.items() if type(value) is int and value > 0]
    yield from ((name,) for name in numbers)
    for value in {params[name] for name in numbers}:
        tied = [name for name in numbers if params[name] == value]
        for count in range(2, MAX_TIED + 1):
            yield from combinations(tied, count)


def _fixed_fields(case: Case, axis: Axis) -> tuple[object, ...]:
    """Fields of the case except the sizes on the axis."""
    params = tuple((name, value) for name, value in case.params.items() if name not in axis)
    return case.suite, case.workload, params, case.dtype, case.phase, case.cache


def _size_panel(axis: Axis, sizes: Sizes) -> Sweeps:
    case = next(iter(sizes.values())).rows[0].case
    fixed = {name: value for name, value in case.params.items() if name not in axis}
    caches = "" if case.cache is Cache.HOT else f"{case.cache} caches"
    head = f"{case.workload}  {params_text(fixed)}".rstrip()
    rows = [row for work in sizes.values() for row in work.rows]
    rates = RATES[1:] if all(row.is_memory_bound_work for row in rows if row.cost) else RATES
    rate = next((name for name in rates if any(row.value(name) is not None for row in rows)), FALLBACK_RATE)
    name, sweeps = " = ".join(axis), tuple(_sweeps(sizes, rate))
    sentences = [*filter(None, (_fastest_text(sizes), _knees_text(sweeps)))]
    return Sweeps(
        title=" · ".join(filter(None, (head, case.dtype, caches))),
        summary=f"over {name}, {sentences[0]}" if sentences else "",
        details="".join(sentences[1:]),
        axis=name,
        unit=next((unit_of(row, rate) for row in rows if row.value(rate) is not None), ""),
        sweeps=sweeps,
    )


def _sweeps(sizes: Sizes, rate: str) -> Iterator[Sweep]:
    """Sweep of each alternative that has a rate, ordered by the rate at its largest size, descending."""
    points: dict[tuple[str, str], list[SizedValue]] = {}
    for size, work in sizes.items():
        for name, row in zip(work.names, work.rows, strict=True):
            value = row.metric(rate)
            if value.value is not None:
                point = SizedValue(
                    size=size,
                    value=value.value,
                    low=value.low,
                    high=value.high,
                    is_undecided=is_undecided(work.ratio_to_fastest(row)),
                )
                points.setdefault((name, row.case.backend), []).append(point)
    for (name, backend), values in sorted(points.items(), key=lambda item: -item[1][-1].value):
        yield Sweep(label=name, backend=backend, points=tuple(values), knee=_knee(values))


def _knee(points: Sequence[SizedValue]) -> SizedValue | None:
    """Smallest size with at least `KNEE_SHARE` of the highest rate; undecided if a smaller one may have it.

    None with fewer than three sizes, or if only the largest size has it, since the rate may rise further.
    """
    highest = max(point.value for point in points)
    index = next(index for index, point in enumerate(points) if point.value >= KNEE_SHARE * highest)
    if len(points) < MIN_SIZES or index == len(points) - 1:
        return None
    may_be_less = index == 0 or _may_reach(points[index - 1], highest)
    return SizedValue(size=points[index].size, value=points[index].value, is_undecided=may_be_less)


def _may_reach(point: SizedValue, highest: float) -> bool:
    """True if the point may reach `KNEE_SHARE` of the highest rate, by the upper end of its interval."""
    return point.high is None or point.high >= KNEE_SHARE * highest


def _fastest_text(sizes: Sizes) -> str:
    """`torch is fastest up to 256, jax from 512; undecided at 384`, or empty."""
    compared = [(size, work.verdict) for size, work in sizes.items() if work.verdict.compared_rivals]
    ends = [size for size, _ in (*compared[:1], *compared[-1:])]
    spans: dict[tuple[Standing, str], list[list[int]]] = {}
    for outcome, group in groupby(compared, key=lambda item: (item[1].standing, item[1].winner)):
        spans.setdefault(outcome, []).append([size for size, _ in group])
    texts = {outcome: _spans_text(stretches, ends, len(compared)) for outcome, stretches in spans.items()}
    won = [(winner, text) for (_, winner), text in texts.items() if winner]
    winners = [f"{name} is fastest {text}" for name, text in won[:1]]
    winners += [f"{name} {text}" for name, text in won[1:]]
    undecided = [f"{UNDECIDED[standing]} {text}" for (standing, winner), text in texts.items() if not winner]
    return "; ".join(filter(None, (", ".join(winners), *undecided)))


def _spans_text(stretches: Sequence[Sequence[int]], ends: Sequence[int], count: int) -> str:
    """`up to 256 and at 1,024`; with more than two stretches only the number of sizes."""
    if len(stretches) > MAX_SPANS:
        return f"at {sum(map(len, stretches))} of {count} sizes"
    return " and ".join(_span_text(stretch[0], stretch[-1], ends) for stretch in stretches)


def _span_text(first: int, last: int, ends: Sequence[int]) -> str:
    """`at every size`, `at 256`, `up to 256`, `from 512` or `from 512 to 1,024`."""
    if [first, last] == ends and first != last:
        return "at every size"
    if first == last:
        return f"at {first:,}"
    if first == ends[0]:
        return f"up to {last:,}"
    return f"from {first:,}" if last == ends[1] else f"from {first:,} to {last:,}"


def _knees_text(sweeps: Sequence[Sweep]) -> str:
    """`the rate stops rising at 512 for torch eager, beyond 1,024 for jax jit`, and where it falls."""
    long = [sweep for sweep in sweeps if len(sweep.points) >= MIN_SIZES]
    labels_by_stop: dict[tuple[float, str], list[str]] = {}
    for sweep in long:
        labels_by_stop.setdefault(_stop_text(sweep), []).append(sweep.label)
    stops = [f"{where} for {_listing(names)}" for (_, where), names in sorted(labels_by_stop.items())]
    fallen: dict[float, list[str]] = {}
    for sweep in long:
        ratio = sweep.points[-1].value / max(point.value for point in sweep.points)
        if ratio < FALLEN:
            text = f"{share(float(f'{ratio:.2g}'))} for {sweep.label}"
            fallen.setdefault(sweep.points[-1].size, []).append(text)
    falls = [f"at {size:,.0f} it has fallen to {', '.join(texts)}" for size, texts in fallen.items()]
    return "; ".join(filter(None, (f"the rate stops rising {', '.join(stops)}" if stops else "", *falls)))


def _stop_text(sweep: Sweep) -> tuple[float, str]:
    """Size where the rate stops rising, for sorting, and its text."""
    if sweep.knee:
        return sweep.knee.size, f"at {sweep.knee.size:,.0f}{' or less' * sweep.knee.is_undecided}"
    *_, before, last = sweep.points
    may_be_smaller = _may_reach(before, last.value)
    return last.size, f"at {last.size:,.0f} or beyond" if may_be_smaller else f"beyond {last.size:,.0f}"


def _listing(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
