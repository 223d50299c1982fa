"""Which works of a run differ in size alone, as panels of latency over that size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from benchbench.analyse.rows import params_text
from benchbench.documents.plots import SizedValue, Sweep, Sweeps
from benchbench.documents.run_works import Work
from benchbench.model.case import Cache, Case, Scalar

LEAST = 3  # sizes that make a line
MOST_TIED = 3  # parameters that are one size, as m = n = k
Sizes = dict[int, Work]  # size → the work that has it
Axis = tuple[str, ...]  # parameters of one value


def size_panels(works: Sequence[Work]) -> list[Sweeps]:
    """A panel for each parameter, or parameters of one value, that alone tells three works apart or more."""
    swept: dict[tuple[object, Axis], Sizes] = {}
    for work in works:
        case = work.rows[0].case
        for axis in _axes(case.params):
            swept.setdefault((_rest(case, axis), axis), {})[int(case.params[axis[0]])] = work
    return [
        _panel(axis, dict(sorted(sizes.items()))) for (_, axis), sizes in swept.items() if len(sizes) >= LEAST
    ]


def _axes(params: Mapping[str, Scalar]) -> Iterator[Axis]:
    """Each whole number, and two or three of one value."""
    numbers = [name for name, value in params.items() if type(value) is int and value > 0]
    yield from ((name,) for name in numbers)
    for value in {params[name] for name in numbers}:
        same = [name for name in numbers if params[name] == value]
        for count in range(2, MOST_TIED + 1):
            yield from combinations(same, count)


def _rest(case: Case, axis: Axis) -> tuple[object, ...]:
    """What else tells a work from others."""
    params = tuple((name, value) for name, value in case.params.items() if name not in axis)
    return case.suite, case.workload, params, case.dtype, case.phase, case.cache


def _panel(axis: Axis, sizes: Sizes) -> Sweeps:
    case = next(iter(sizes.values())).rows[0].case
    fixed = {name: value for name, value in case.params.items() if name not in axis}
    caches = "" if case.cache is Cache.HOT else f"{case.cache} caches"
    head = f"{case.workload}  {params_text(fixed)}".rstrip()
    return Sweeps(
        title=" · ".join(filter(None, (head, case.dtype, caches))),
        axis=" = ".join(axis),
        unit="s",
        sweeps=tuple(_sweeps(sizes)),
    )


def _sweeps(sizes: Sizes) -> Iterator[Sweep]:
    """A line for each alternative that has a latency; the uppermost at the right end comes first."""
    points: dict[tuple[str, str], list[SizedValue]] = {}
    for size, work in sizes.items():
        for name, row in zip(work.names, work.rows, strict=True):
            latency = row.metric("latency_s")
            if latency.value is not None:
                point = SizedValue(size=size, value=latency.value, low=latency.low, high=latency.high)
                points.setdefault((name, row.case.backend), []).append(point)
    for (name, backend), found in sorted(points.items(), key=lambda item: -item[1][-1].value):
        yield Sweep(label=name, backend=backend, points=tuple(found))
