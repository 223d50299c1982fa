"""Sizes of workloads: axes unfolded into points, names tied to one value, what was typed for them. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress

from benchbench.errors import UsageError
from benchbench.model.case import Scalar

Axes = Mapping[str, list[Scalar] | Scalar]  # a key may tie names: `m=n=k`
TIE = "="
MOST_CASES = 10_000  # a day, at eight seconds each


def tied(key: str) -> list[str]:
    """`m=n=k` → the three names."""
    return [name.strip() for name in key.split(TIE)]


def points(axes: Axes) -> Iterator[dict[str, Scalar]]:
    """The product of the lists; names that are tied have the same value at every point."""
    lists = [values if isinstance(values, list) else [values] for values in axes.values()]
    for point in itertools.product(*lists):
        yield {name: value for key, value in zip(axes, point, strict=True) for name in tied(key)}


def point_count(axes: Axes) -> int:
    """How many points there are, none of them made."""
    return math.prod(len(values) if isinstance(values, list) else 1 for values in axes.values())


def check_count(count: int) -> None:
    """Raise UsageError for more cases than a run can have."""
    if count > MOST_CASES:
        hint = "Narrow it with -w, -b, -d, --dtype or -p, or divide the suite."
        raise UsageError(f"{count:,} cases are asked for; a run has at most {MOST_CASES:,}.", hint)


def overridden(axes: Axes, own: Axes) -> dict[str, list[Scalar] | Scalar]:
    """`axes` with `own` in place of what these name."""
    named = {name for key in own for name in tied(key)}
    left = {TIE.join(name for name in tied(key) if name not in named): axes[key] for key in axes}
    return {**{key: values for key, values in left.items() if key}, **own}


def of_fields(params: Mapping[str, list[Scalar]], fields: Collection[str]) -> dict[str, list[Scalar]]:
    """Those that a workload with these fields has."""
    own = {TIE.join(name for name in tied(key) if name in fields): values for key, values in params.items()}
    return {key: values for key, values in own.items() if key}


def left_behind(axes: Axes, own: Axes, fields: Mapping[str, Scalar]) -> list[tuple[str, ...]]:
    """A key of `own`, then the sizes that were as large and stay; `fields`: with their defaults."""
    changed = {name for key in own for name in tied(key)}
    found = []
    for point in itertools.islice(points(axes), MOST_CASES):
        sizes = {**fields, **point}
        for key in own:
            size = sizes[tied(key)[0]]
            same = [name for name in sizes if name not in changed and _equal(sizes[name], size)]
            found += [(key, *same)] if same else []
    return found


def _equal(one: Scalar, other: Scalar) -> bool:
    """Of sizes; that both are 1 says nothing."""
    return type(one) is int and type(other) is int and one == other != 1


def parse_params(texts: Sequence[str]) -> dict[str, list[Scalar]]:
    """`["batch=32,64", "m=n=512"]` → lists of numbers, truth values or words, by key. Raises UsageError."""
    found: dict[str, list[Scalar]] = {}
    for text in texts:
        key, _, values = text.rpartition(TIE)
        if not values or not all(tied(key)):
            hint = "Write it as name=value or name=value,value; m=n=512 ties sizes."
            raise UsageError(f"Cannot read -p {text!r}.", hint)
        found[TIE.join(tied(key))] = [_scalar(value.strip()) for value in values.split(",")]
    return found


def _scalar(text: str) -> Scalar:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text
