"""Sizes of a work: who is fastest at which, where rates stop rising, and the table of what was doubled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, groupby

from benchbench.analyse.rows import params_text, unit_of
from benchbench.documents.document import SizedValue, Sweep, Sweeps
from benchbench.documents.run_table import Work, is_open
from benchbench.format import share
from benchbench.judging.ranking import EQUIVALENCE, Standing
from benchbench.model.case import Cache, Case, Scalar

NEARLY = 0.95  # of the highest rate: the knee is the smallest size that reaches it
FALLEN = 0.5  # of the highest rate: that the largest size has less is told
MOST_SPANS = 2  # stretches of sizes that are named
LEAST = 3  # sizes that make a line
MOST_TIED = 3  # parameters that are one size, as m = n = k
RATES = (
    "flops_per_s",
    "bytes_per_s",
    "items_per_s",
)  # the first that is known: work and bytes grow with a size
RATE = "items_per_s"  # of what is doubled
UNDECIDED = {
    Standing.OPEN: "cannot tell which is fastest",
    Standing.TIED: f"those in front are as fast as each other within {EQUIVALENCE:.0%}",
}
Sizes = dict[int, Work]  # size → the work that has it
Axis = tuple[str, ...]  # parameters of one value


def size_panels(works: Sequence[Work]) -> list[Sweeps]:
    """A panel for each parameter, or parameters of one value, that alone tells three works apart or more.

    `works`: with the verdicts of the run.
    """
    swept: dict[tuple[object, Axis], Sizes] = {}
    for work in works:
        case = work.rows[0].case
        for axis in _axes(case.params):
            swept.setdefault((_rest(case, axis), axis), {})[int(case.params[axis[0]])] = work
    panels = [
        _panel(axis, dict(sorted(sizes.items()))) for (_, axis), sizes in swept.items() if len(sizes) >= LEAST
    ]
    return [panel for panel in panels if panel.sweeps]


def _axes(params: Mapping[str, Scalar]) -> Iterator[Axis]:
    """Parameters that may be a size: each whole number, and two or three of one value."""
    numbers = [name for name, value in params.items() if type(value) is int and value > 0]
    yield from ((name,) for name in numbers)
    for value in {params[name] for name in numbers}:
        same = [name for name in numbers if params[name] == value]
        for count in range(2, MOST_TIED + 1):
            yield from combinations(same, count)


def _rest(case: Case, axis: Axis) -> tuple[object, ...]:
    """What else tells the work from others, besides the sizes on the axis."""
    params = tuple((name, value) for name, value in case.params.items() if name not in axis)
    return case.suite, case.workload, params, case.dtype, case.phase, case.cache


def _panel(axis: Axis, sizes: Sizes) -> Sweeps:
    case = next(iter(sizes.values())).rows[0].case
    fixed = {name: value for name, value in case.params.items() if name not in axis}
    caches = "" if case.cache is Cache.HOT else f"{case.cache} caches"
    head = f"{case.workload}  {params_text(fixed)}".rstrip()
    rows = [row for work in sizes.values() for row in work.rows]
    rates = RATES[1:] if all(row.is_memory_bound_work for row in rows if row.cost) else RATES
    rate = next((name for name in rates if any(row.value(name) is not None for row in rows)), RATE)
    name, sweeps = " = ".join(axis), tuple(_sweeps(sizes, rate))
    told = [*filter(None, (_fastest(sizes), _knees(sweeps)))]
    return Sweeps(
        title=" · ".join(filter(None, (head, case.dtype, caches))),
        finding=f"over {name}, {told[0]}" if told else "",
        details="".join(told[1:]),
        axis=name,
        unit=next((unit_of(row, rate) for row in rows if row.value(rate) is not None), ""),
        sweeps=sweeps,
    )


def _sweeps(sizes: Sizes, rate: str) -> Iterator[Sweep]:
    """A line for each alternative that has a rate; the uppermost at the right end comes first."""
    points: dict[tuple[str, str], list[SizedValue]] = {}
    for size, work in sizes.items():
        for name, row in zip(work.names, work.rows, strict=True):
            found = row.metric(rate)
            if found.value is not None:
                point = SizedValue(
                    size=size,
                    value=found.value,
                    low=found.low,
                    high=found.high,
                    is_open=is_open(work.beside(row)),
                )
                points.setdefault((name, row.case.backend), []).append(point)
    for (name, backend), own in sorted(points.items(), key=lambda item: -item[1][-1].value):
        yield Sweep(label=name, backend=backend, points=tuple(own), knee=_knee(own))


def _knee(points: Sequence[SizedValue]) -> SizedValue | None:
    """The smallest size with nearly the highest rate, open where a smaller one may have it, too.

    None of fewer than three sizes, and where the largest alone has it: the rate may rise further.
    """
    highest = max(point.value for point in points)
    place = next(index for index, point in enumerate(points) if point.value >= NEARLY * highest)
    if len(points) < LEAST or place == len(points) - 1:
        return None
    may_be_less = place == 0 or _may_reach(points[place - 1], highest)
    return SizedValue(size=points[place].size, value=points[place].value, is_open=may_be_less)


def _may_reach(point: SizedValue, highest: float) -> bool:
    return point.high is None or point.high >= NEARLY * highest


def _fastest(sizes: Sizes) -> str:
    """`torch is fastest up to 256, jax from 512; cannot tell which is fastest at 384`; else empty."""
    compared = [(size, work.verdict) for size, work in sizes.items() if work.verdict.compared_rivals]
    ends = [size for size, _ in (*compared[:1], *compared[-1:])]
    spans: dict[tuple[Standing, str], list[list[int]]] = {}
    for outcome, group in groupby(compared, key=lambda each: (each[1].standing, each[1].winner)):
        own = [size for size, _ in group]
        spans.setdefault(outcome, []).append(own)
    where = {outcome: _spans(own, ends, len(compared)) for outcome, own in spans.items()}
    won = [(winner, places) for (_, winner), places in where.items() if winner]
    told = [f"{name} is fastest {places}" for name, places in won[:1]]
    told += [f"{name} {places}" for name, places in won[1:]]
    rest = [f"{UNDECIDED[each]} {places}" for (each, winner), places in where.items() if not winner]
    rest = [each.replace("at every", "at any") if each.startswith("cannot") else each for each in rest]
    return "; ".join(filter(None, (", ".join(told), *rest)))


def _spans(found: Sequence[Sequence[int]], ends: Sequence[int], count: int) -> str:
    """`up to 256 and at 1,024`; of more stretches than two how many sizes of all."""
    if len(found) > MOST_SPANS:
        return f"at {sum(map(len, found))} of {count} sizes"
    return " and ".join(_span(own[0], own[-1], ends) for own in found)


def _span(first: int, last: int, ends: Sequence[int]) -> str:
    if [first, last] == ends and first != last:
        return "at every size"
    if first == last:
        return f"at {first:,}"
    if first == ends[0]:
        return f"up to {last:,}"
    return f"from {first:,}" if last == ends[1] else f"from {first:,} to {last:,}"


def _knees(sweeps: Sequence[Sweep]) -> str:
    """`the rate stops rising at 512 for torch eager, beyond 1,024 for jax jit`, and where it falls again."""
    long = [sweep for sweep in sweeps if len(sweep.points) >= LEAST]
    places: dict[tuple[float, str], list[str]] = {}
    for sweep in long:
        places.setdefault(_stop(sweep), []).append(sweep.label)
    stops = [f"{where} for {_listed(names)}" for (_, where), names in sorted(places.items())]
    left: dict[float, list[str]] = {}
    for sweep in long:
        part = sweep.points[-1].value / max(point.value for point in sweep.points)
        if part < FALLEN:
            told = f"{share(float(f'{part:.2g}'))} for {sweep.label}"
            left.setdefault(sweep.points[-1].size, []).append(told)
    fallen = [f"at {size:,.0f} there is left of it {', '.join(own)}" for size, own in left.items()]
    return "; ".join(filter(None, (f"the rate stops rising {', '.join(stops)}" if stops else "", *fallen)))


def _stop(sweep: Sweep) -> tuple[float, str]:
    """Where the rate stops rising, by which to sort and in words."""
    if sweep.knee:
        return sweep.knee.size, f"at {sweep.knee.size:,.0f}{' or less' * sweep.knee.is_open}"
    *_, before, last = sweep.points
    nearly = _may_reach(before, last.value)
    return last.size, f"at {last.size:,.0f} or beyond" if nearly else f"beyond {last.size:,.0f}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
