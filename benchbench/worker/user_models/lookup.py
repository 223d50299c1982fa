"""User models by name: their workloads, their descriptions for the planner, and errors of their engines."""

from __future__ import annotations

import os
import re
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchbench.errors import line_of_error, one_line
from benchbench.machine.kernel import thread_count
from benchbench.model import user_model
from benchbench.model.case import STREAMS, Dtype, Scalar
from benchbench.model.user_model import JAX, KERAS, KIND_OF_FILE, ONNX, TORCH, ModelSpec
from benchbench.worker.user_files import describe_size
from benchbench.worker.user_models import input_file, jax_model, keras_model, torch_module
from benchbench.worker.user_models.jax_model import JaxInference
from benchbench.worker.user_models.keras_workload import KerasInference
from benchbench.worker.user_models.onnx_file import OnnxInference
from benchbench.worker.user_models.source import ModelMistake, import_model_file, in_model_folder
from benchbench.worker.user_models.torch_training import LOSS, ModelTraining, objective_of
from benchbench.worker.user_models.workload import (
    INPUT,
    ModelInference,
    ModelOperation,
    ModelWorkload,
    TorchWorkload,
)
from benchbench.workloads.base import Draw

INFERENCE_CLASSES: Mapping[str, type[ModelOperation]] = {  # by kind
    TORCH: ModelInference,
    KERAS: KerasInference,
    JAX: JaxInference,
    ONNX: OnnxInference,
}


def find_model_workload(name: str, params: Mapping[str, Scalar]) -> ModelWorkload | None:
    """The user's model with this name at these parameters, or None if there is no such model."""
    spec = user_model.from_text(os.environ.get(user_model.VARIABLE, "")).get(name)
    return None if spec is None else model_workload(spec, params)


def model_workload(spec: ModelSpec, params: Mapping[str, Scalar]) -> ModelWorkload:
    """Workload of the model (or of its training step) at these parameters."""
    workload_class: type[ModelWorkload] = ModelTraining if spec.trains else INFERENCE_CLASSES[spec.kind]
    sizes = dict(params)
    streams = sizes.pop(STREAMS, 1)
    workload = workload_class(spec, sizes)
    return replace(workload, streams=int(streams)) if streams != 1 else workload


def use_cpu(kind: str) -> None:
    """Restrict this process to the CPU, for models of this kind.

    Must be called before the framework computes anything. Torch uses the CPU by default.
    """
    if kind == KERAS:
        keras_model.use_cpu()
    elif kind == JAX:
        jax_model.use_cpu()


def defines_loss(spec: ModelSpec, graph: Mapping[str, Any]) -> bool:
    """True if the file or the model's output defines the loss of a training step."""
    if spec.kind == TORCH and not spec.is_program and SCALAR_LOSS in graph["outputs"].items():
        return True
    if Path(spec.file).suffix in KIND_OF_FILE:
        return False
    if spec.kind == TORCH:
        return objective_of(spec).loss is not None
    with in_model_folder(spec):
        return callable(getattr(import_model_file(spec), LOSS, None))


def describe_model(spec: ModelSpec, params: Mapping[str, Scalar] | None) -> dict[str, Any]:
    """Describe a model's sizes and the cost of a step, at its defaults updated by `params`.

    If the file has a mistake, return only `mistake`, `hint` and `line`.
    """
    started_at, threads_before = time.perf_counter(), thread_count()
    try:
        use_cpu(spec.kind)
        loaded = model_workload(spec, {}).load()
        import_s, new_threads = time.perf_counter() - started_at, thread_count() - threads_before
        default_sizes = objective_of(spec).sizes(loaded.sizes) if spec.trains else loaded.sizes
        sizes = {**default_sizes, **(params or {})}
        input_file.check_size(spec, sizes)
        workload = model_workload(spec, sizes)
        graph, size = workload.graph, describe_size(workload)
        has_loss = not spec.trains and defines_loss(spec, graph)
        has_own_inputs = spec.kind == TORCH and (loaded.inputs is not None or bool(spec.input))
    except ModelMistake as mistake:
        return {"mistake": str(mistake), "hint": mistake.hint, "line": None}
    except BaseException as error:  # noqa: BLE001 - a user's file may fail in any way
        return {
            "mistake": _message(error),
            "hint": _hint(error, spec),
            "line": line_of_error(error, spec.file),
        }
    return {
        "attribute": loaded.attribute,
        "is_default": loaded.is_default,
        "sizes": default_sizes,
        "model_sizes": list(loaded.model_sizes),
        "input_sizes": list(loaded.input_sizes),
        "has_loss": has_loss,
        "generates": bool(graph.get("generates")) and not has_own_inputs,
        "graph": {name: graph[name] for name in GRAPH_KEYS if name in graph},
        "size": size,
        "import_s": import_s,
        # A Keras file may create tensors, which starts threads in some frameworks only, not in this one.
        "can_be_preloaded": spec.kind != KERAS and new_threads <= 0 and not _uses_gpu(),
    }


def _message(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"importing it ends the program with status {error.code}"
    return one_line(error)


def _hint(error: BaseException, spec: ModelSpec) -> str:
    """The way out for code at module level that parses arguments or loads data, else empty."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == spec.file]
    is_import = bool(frames) and frames[0].name == "<module>"
    return GUARD_HINT if is_import and isinstance(error, SCRIPT_ERRORS) else ""


# Errors of a script that is imported: its arguments, variables or data are missing.
SCRIPT_ERRORS = (SystemExit, OSError, IndexError, KeyError)
GUARD_HINT = (
    "The file is imported, not run. Put the code that parses arguments or loads data under "
    "`if __name__ == '__main__':`."
)
# Transformers models that are given labels return their loss as a scalar output of this name.
SCALAR_LOSS: tuple[str, list[int]] = (LOSS, [])
# Keys of the graph's facts that are part of the description.
GRAPH_KEYS = ("flops", "parameters", "constants", "takes_images", "dtype", "weights_dtype", "omits")


def _uses_gpu() -> bool:
    """True if the model's file has started CUDA, ROCm or XPU, which do not work in a fork."""
    torch = sys.modules.get("torch")
    modules = [getattr(torch, name, None) for name in ("cuda", "xpu")]
    return any(module.is_initialized() for module in modules if module is not None)


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
        raised_at = line_of_error(error, workload.spec.file)
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
    return line_of_error(error, workload.spec.file)


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
