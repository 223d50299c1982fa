"""Short names of cases: only the parameters that vary between the sizes of a workload."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeVar

from benchbench.documents.document import Cell

T = TypeVar("T")
DEFAULT_PARAMS = 2  # shown of a workload with a single size
ID = re.compile(r"(?P<workload>[^(/]+)\((?P<params>[^()]*)\)(?P<rest>/.*)", re.DOTALL)
VaryingParams = set[tuple[str, str]]  # (workload, parameter)


def varying_params(sizes: Iterable[tuple[str, Mapping[str, object]]]) -> VaryingParams:
    """Parameters whose values differ between the sizes of their workload, or that some sizes lack."""
    sizes = list(sizes)
    counts = Counter(workload for workload, _ in sizes)
    values_by_param: dict[tuple[str, str], list[object]] = {}
    for workload, params in sizes:
        for name, value in params.items():
            values_by_param.setdefault((workload, name), []).append(value)
    return {
        key for key, values in values_by_param.items() if len(set(values)) > 1 or len(values) < counts[key[0]]
    }


def short_params(workload: str, params: Mapping[str, T], varying: VaryingParams) -> dict[str, T]:
    """Parameters that vary between sizes, or the first two if none does."""
    selected = {name: value for name, value in params.items() if (workload, name) in varying}
    return selected or dict(list(params.items())[:DEFAULT_PARAMS])


def case_cells(ids: Iterable[str]) -> dict[str, Cell]:
    """Cells by case id, with a short form such as `conv2d(batch=8,…)/float32/eager@torch:cpu`.

    Different ids have different short forms.
    """
    ids = list(ids)
    matches = {case_id: match for case_id in ids if (match := ID.fullmatch(case_id))}
    sizes = {
        case_id: (match["workload"], _parse_params(match["params"])) for case_id, match in matches.items()
    }
    varying = varying_params(sizes.values())
    short = {
        case_id: _short_id(*sizes[case_id], match["rest"], varying) for case_id, match in matches.items()
    }
    return {case_id: Cell((case_id,), short=short.get(case_id, "")) for case_id in ids}


def _parse_params(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split(","))
    return {name: value for name, equals, value in pairs if equals}


def _short_id(workload: str, params: Mapping[str, str], suffix: str, varying: VaryingParams) -> str:
    selected = short_params(workload, params, varying)
    texts = [f"{name}={value}" for name, value in selected.items()]
    return f"{workload}({','.join([*texts, '…'] if len(selected) < len(params) else texts)}){suffix}"
