"""Description of a user's model for the planner: names, sizes, cost. The user's file is imported here."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchbench.machine.kernel import thread_count
from benchbench.model.case import Scalar
from benchbench.model.user_model import KERAS, KIND_OF_FILE, TORCH, ModelSpec
from benchbench.worker.causes import one_line
from benchbench.worker.user_models import input_file
from benchbench.worker.user_models.lookup import model_workload, use_cpu
from benchbench.worker.user_models.source import (
    ModelMistake,
    import_model_file,
    in_model_folder,
    line_of_error,
)
from benchbench.worker.user_models.torch_training import LOSS, objective_of


def defines_loss(spec: ModelSpec, graph: Mapping[str, Any]) -> bool:
    """True if the file or the model's output defines the loss of a training step."""
    if spec.kind == TORCH and SCALAR_LOSS in graph["outputs"].items():
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
        graph = model_workload(spec, sizes).facts()
        has_loss = not spec.trains and defines_loss(spec, graph)
        has_own_inputs = spec.kind == TORCH and (loaded.inputs is not None or bool(spec.input))
    except ModelMistake as mistake:
        return {"mistake": str(mistake), "hint": mistake.hint, "line": None}
    except BaseException as error:  # noqa: BLE001 - a user's file may fail in any way
        return {"mistake": _message(error), "hint": _hint(error, spec), "line": line_of_error(error, spec)}
    return {
        "attribute": loaded.attribute,
        "is_default": loaded.is_default,
        "sizes": default_sizes,
        "model_sizes": list(loaded.model_sizes),
        "input_sizes": list(loaded.input_sizes),
        "has_loss": has_loss,
        "generates": bool(graph.get("generates")) and not has_own_inputs,
        "graph": {name: graph[name] for name in GRAPH_KEYS if name in graph},
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
GRAPH_KEYS = (
    *("digest", "flops", "parameters", "constants", "floats", "other_bytes", "takes_images", "dtype"),
    *("weights_dtype", "takes", "gives", "data"),
)


def _uses_gpu() -> bool:
    """True if the model's file has started CUDA, ROCm or XPU, which do not work in a fork."""
    torch = sys.modules.get("torch")
    modules = [getattr(torch, name, None) for name in ("cuda", "xpu")]
    return any(module.is_initialized() for module in modules if module is not None)
