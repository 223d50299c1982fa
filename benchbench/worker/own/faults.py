"""Why an engine cannot take a user's model: which operator, where in the user's file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchbench.model.case import Dtype
from benchbench.worker.causes import one_line
from benchbench.worker.own import torch_module
from benchbench.worker.own.source import line_in
from benchbench.worker.own.workload import INPUT, OwnWorkload, TorchWorkload
from benchbench.workloads.base import Draw

# What takes a module apart, by where its errors are defined; the first that an error's chain has.
TOOLS = (
    ("torch.onnx", "torch.onnx"),
    ("torch.fx.experimental.symbolic_shapes", "torch.export"),
    ("torch._export", "torch.export"),
    ("torch._dynamo", "torch.compile"),
    ("torch._inductor", "torch's inductor"),
)
OPERATOR = re.compile(r"aten\.(\w+)")
BRANCHES = re.compile(r"data-dependent")
LONGEST = 200  # characters of a reason


def refusal(error: BaseException, workload: OwnWorkload) -> str | None:
    """`torch.export: it branches on a value, my_model.py, line 23`; None where no engine took it apart.

    Of a model that is no torch module, what its own file raised: it was described by another engine, or is
    compiled by this one.
    """
    if not isinstance(workload, TorchWorkload):
        raised_at = line_in(error, workload.spec)
        told = f"{one_line(error)[:LONGEST]}, {Path(workload.spec.file).name}, line {raised_at}"
        return told if raised_at else None
    chain = list(_chain(error))
    tools = [tool for prefix, tool in TOOLS for each in chain if type(each).__module__.startswith(prefix)]
    if not tools:
        return None
    texts = [str(each) for each in chain]
    tool, operator = tools[0], None
    if any(BRANCHES.search(text) for text in texts):
        tool, why = "torch.export" if tool == "torch.onnx" else tool, "what it does next depends on a value"
    elif operator := _operator_in(texts):
        why = f"it cannot do aten.{operator}"
    else:
        why = texts[-1].strip().splitlines()[0][:LONGEST] if texts[-1].strip() else type(chain[-1]).__name__
    line = _line_in(texts, error, workload) or (operator and line_of(operator, workload))
    where = f", {Path(workload.spec.file).name}, line {line}" if line and workload.spec.file else ""
    return f"{tool}: {why}{where}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__


def _operator_in(texts: list[str]) -> str | None:
    """The operator that the innermost error names."""
    found = [match[1] for text in reversed(texts) if (match := OPERATOR.search(text))]
    return found[0] if found else None


def _line_in(texts: list[str], error: BaseException, workload: TorchWorkload) -> int | None:
    """The line of the user's file that an error names, or came from."""
    file = re.escape(workload.spec.file)
    for text in texts:
        if workload.spec.file and (found := re.findall(rf'{file}(?:", line |:)(\d+)', text)):
            return int(found[-1])
    return line_in(error, workload.spec)


def line_of(operator: str, workload: TorchWorkload) -> int | None:
    """The line of the user's file that first calls an operator, found by running the model once."""
    import traceback

    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    lines: list[int] = []

    class Watch(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.overloadpacket.__name__ == operator and not lines:
                stack = traceback.extract_stack()
                lines.extend(
                    each.lineno for each in stack if each.filename == workload.spec.file and each.lineno
                )
            return func(*args, **(kwargs or {}))

    arrays = workload.tiny().input_arrays(Draw(Dtype.FLOAT32))
    module = torch_module.built(workload.spec, workload.tiny().sizes)
    tensors = {name.removeprefix(INPUT): torch.from_numpy(array) for name, array in arrays.items()}
    own, named = workload.tiny().arguments(module)(tensors)
    with torch.no_grad(), Watch():
        module(*own, **named)
    return lines[-1] if lines else None
