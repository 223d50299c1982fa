"""Short names of cases: of a workload's parameters, only those that tell its sizes apart."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

from benchbench.documents.document import Cell

T = TypeVar("T")
NAMED = 2  # parameters of a workload that has one size
ID = re.compile(r"(?P<workload>[^(/]+)\((?P<params>[^()]*)\)(?P<rest>/.*)", re.DOTALL)
Telling = set[tuple[str, str]]  # workload, parameter


def telling(sizes: Iterable[tuple[str, Mapping[str, object]]]) -> Telling:
    """The parameters that differ among the sizes of a workload."""
    seen: dict[tuple[str, str], set[object]] = {}
    for workload, params in sizes:
        for name, value in params.items():
            seen.setdefault((workload, name), set()).add(value)
    return {key for key, values in seen.items() if len(values) > 1}


def telling_params(workload: str, params: Mapping[str, T], known: Telling) -> dict[str, T]:
    """The parameters that tell this size from the others; the first ones where it is the only one."""
    kept = {name: value for name, value in params.items() if (workload, name) in known}
    return kept or dict(list(params.items())[:NAMED])


def case_cells(ids: Iterable[str]) -> dict[str, Cell]:
    """Id of a case → a cell of it, `conv2d(batch=8,…)/float32/eager@torch:cpu` where there is little room.

    Different ids stay different.
    """
    ids = list(ids)
    parsed = {each: found for each in ids if (found := ID.fullmatch(each))}
    sizes = {each: (found["workload"], _params(found["params"])) for each, found in parsed.items()}
    known = telling(sizes.values())
    short = {each: _short(*sizes[each], found["rest"], known) for each, found in parsed.items()}
    return {each: Cell((each,), short=short.get(each, "")) for each in ids}


def _params(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split(","))
    return {name: value for name, equals, value in pairs if equals}


def _short(workload: str, params: Mapping[str, str], rest: str, known: Telling) -> str:
    kept = telling_params(workload, params, known)
    texts = [f"{name}={value}" for name, value in kept.items()]
    return f"{workload}({','.join([*texts, '…'] if len(kept) < len(params) else texts)}){rest}"
