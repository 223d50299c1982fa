"""`mode=compile`, `jax`, `torch@old=/path/python`, `rev:HEAD~1` → what a side of a comparison changes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from types import MappingProxyType
from typing import TypeVar

from benchbench import registry
from benchbench.environments.targets import by_hand, targets
from benchbench.errors import UsageError, member, unknown
from benchbench.model.case import Cache, Dtype
from benchbench.model.device import Target
from benchbench.model.options import Allocator, Isolation
from benchbench.model.placement import ENVIRONMENT, VARIABLE
from benchbench.plan.rerun import Variant

T = TypeVar("T", bound=StrEnum)
REVISION = "rev:"


def parse_variant(text: str, given: Mapping[str, str] = MappingProxyType({})) -> Variant:
    """Parts by commas: each a target, an option, an interpreter or a revision. Raises UsageError.

    `given`: target → its interpreter, where it was named elsewhere.
    """
    found = Variant(text=text)
    for part in filter(None, (part.strip() for part in text.split(","))):
        found = _with(found, part, given)
    if found == Variant(text=text):
        raise UsageError(f"Cannot read the side {text!r}.", _ways())
    return found


def targets_of_variants(
    variants: Sequence[Variant], chosen: Sequence[Target], given: Mapping[str, str] = MappingProxyType({})
) -> tuple[list[Target], list[Target]]:
    """The targets of either side.

    One without a target of its own has `chosen`, else the other's backend under this interpreter, else
    every backend.
    """
    a, b = (variant.target for variant in variants)
    return _targets(a, b, chosen, given), _targets(b, a, chosen, given)


def _targets(
    own: Target | None, other: Target | None, chosen: Sequence[Target], given: Mapping[str, str]
) -> list[Target]:
    if own:
        return [own]
    return list(chosen) or targets([other.backend] if other else [], given, sys.executable)


def _with(found: Variant, part: str, given: Mapping[str, str]) -> Variant:
    if part.startswith(REVISION):
        return replace(found, revision=part.removeprefix(REVISION))
    name, equals, value = part.partition("=")
    if name.startswith(ENVIRONMENT):
        return _with_variable(found, name.removeprefix(ENVIRONMENT), equals, value)
    if equals and name in OPTIONS:
        return OPTIONS[name](found, value)
    known = registry.entry_names("benchbench.backends")
    if equals and name.partition("@")[0] not in known:
        raise UsageError(f"No option or backend named {name!r}.", unknown("names", name, [*OPTIONS, *known]))
    (target,) = targets([name], {**given, **by_hand([part])} if equals else given, sys.executable)
    return replace(found, target=target)


def _with_variable(found: Variant, name: str, equals: str, value: str) -> Variant:
    if not equals or not VARIABLE.fullmatch(name):
        hint = f"Write {ENVIRONMENT}NAME=value, or {ENVIRONMENT}NAME= to leave it as it is."
        raise UsageError(f"Cannot read {ENVIRONMENT}{name}.", hint)
    return replace(found, environment={**found.environment, name: value})


def _threads(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"{text!r} is not a number of threads.", "Write threads=2.")
    return int(text)


def _setting(name: str, read: Callable[[str], object]) -> Callable[[Variant, str], Variant]:
    return lambda found, text: replace(found, settings={**found.settings, name: read(text)})


OPTIONS: Mapping[str, Callable[[Variant, str], Variant]] = {
    "mode": lambda found, text: replace(found, mode=text),
    "dtype": lambda found, text: replace(found, dtype=member(Dtype, text)),
    "device": lambda found, text: replace(found, device=text),
    "cache": lambda found, text: replace(found, cache=member(Cache, text)),
    "threads": _setting("threads", _threads),
    "allocator": _setting("allocator", lambda text: member(Allocator, text)),
    "isolation": _setting("isolation", lambda text: member(Isolation, text)),
}


def _ways() -> str:
    options = ", ".join(f"{name}=…" for name in OPTIONS)
    others = f"{ENVIRONMENT}NAME=value, NAME=/path/to/python, or {REVISION}REVISION"
    return f"A side is a backend, {options}, {others}."
