"""Explain why an engine cannot convert a user's model: the operator, and the line in the user's file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchbench.model.case import Dtype
from benchbench.worker.causes import one_line
from benchbench.worker.user_models import torch_module
from benchbench.worker.user_models.source import line_of_error
from benchbench.worker.user_models.workload import INPUT, ModelWorkload, TorchWorkload
from benchbench.workloads.base import Draw

# Module prefix of an exception's class → the tool that raised it. The first match among its causes counts.
TOOLS = (
    ("torch.onnx", "torch.onnx"),
    ("torch.fx.experimental.symbolic_shapes", "torch.export"),
    ("torch._export", "torch.export"),
    ("torch._dynamo", "torch.compile"),
    ("torch._inductor", "torch's inductor"),
)
OPERATOR = re.compile(r"aten\.(\w+)")
DATA_DEPENDENT = re.compile(r"data-dependent")
MAX_REASON = 200  # characters


def conversion_error(error: BaseException, workload: ModelWorkload) -> str | None:
    """Explain why an engine could not convert the model, or None if it failed elsewhere.

    Example: `torch.export: it branches on a value, my_model.py, line 23`. For models that are not torch
    modules, return the error that their own file raised.
    """
    if not isinstance(workload, TorchWorkload):
        raised_at = line_of_error(error, workload.spec)
        message = f"{one_line(error)[:MAX_REASON]}, {Path(workload.spec.file).name}, line {raised_at}"
        return message if raised_at else None
    chain = list(_chain(error))
    tools = [tool for prefix, tool in TOOLS for cause in chain if type(cause).__module__.startswith(prefix)]
    if not tools:
        return None
    texts = [str(cause) for cause in chain]
    tool, operator = tools[0], None
    if any(DATA_DEPENDENT.search(text) for text in texts):
        tool, reason = (
            "torch.export" if tool == "torch.onnx" else tool,
            "what it does next depends on a value",
        )
    elif operator := _operator_in(texts):
        reason = f"it cannot do aten.{operator}"
    else:
        reason = (
            texts[-1].strip().splitlines()[0][:MAX_REASON] if texts[-1].strip() else type(chain[-1]).__name__
        )
    line = _line_in(texts, error, workload) or (operator and line_calling(operator, workload))
    where = f", {Path(workload.spec.file).name}, line {line}" if line and workload.spec.file else ""
    return f"{tool}: {reason}{where}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__


def _operator_in(texts: list[str]) -> str | None:
    """Name of the operator in the innermost error that mentions one."""
    operators = [match[1] for text in reversed(texts) if (match := OPERATOR.search(text))]
    return operators[0] if operators else None


def _line_in(texts: list[str], error: BaseException, workload: TorchWorkload) -> int | None:
    """Line of the user's file that an error mentions or was raised from."""
    file = re.escape(workload.spec.file)
    for text in texts:
        if workload.spec.file and (lines := re.findall(rf'{file}(?:", line |:)(\d+)', text)):
            return int(lines[-1])
    return line_of_error(error, workload.spec)


def line_calling(operator: str, workload: TorchWorkload) -> int | None:
    """Line of the user's file that first calls an operator, found by running the model once."""
    import traceback

    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    lines: list[int] = []

    class CallRecorder(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.overloadpacket.__name__ == operator and not lines:
                stack = traceback.extract_stack()
                lines.extend(
                    frame.lineno for frame in stack if frame.filename == workload.spec.file and frame.lineno
                )
            return func(*args, **(kwargs or {}))

    arrays = workload.tiny().input_arrays(Draw(Dtype.FLOAT32))
    module = torch_module.build(workload.spec, workload.tiny().sizes)
    tensors = {name.removeprefix(INPUT): torch.from_numpy(array) for name, array in arrays.items()}
    positional, keywords = workload.tiny().arguments(module)(tensors)
    with torch.no_grad(), CallRecorder():
        module(*positional, **keywords)
    return lines[-1] if lines else None
