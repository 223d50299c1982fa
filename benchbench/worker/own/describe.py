"""What a user's model is, for whoever plans with it: names, sizes, work. Its file is imported here."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchbench.model.case import Scalar
from benchbench.model.own import KIND_OF_FILE, TORCH, ModelSpec
from benchbench.worker.causes import one_line
from benchbench.worker.own import given_inputs
from benchbench.worker.own.named import model_of, use_cpu
from benchbench.worker.own.source import ModelMistake, imported, in_folder, line_in
from benchbench.worker.own.torch_objective import LOSS, objective_of


def says_loss(spec: ModelSpec, graph: Mapping[str, Any]) -> bool:
    """Whether its file says what the loss of a training step is, or the model gives one."""
    if spec.kind == TORCH and not spec.is_program and LOSS_ITSELF in graph["outputs"].items():
        return True
    if Path(spec.file).suffix in KIND_OF_FILE:
        return False
    if spec.kind == TORCH:
        return objective_of(spec).loss is not None
    with in_folder(spec):
        return callable(getattr(imported(spec), LOSS, None))


def described(spec: ModelSpec, params: Mapping[str, Scalar] | None) -> dict[str, Any]:
    """A model's sizes and what a step costs: at its defaults, or at `params`.

    `mistake`: what is wrong with the file instead, with `hint` and `line`.
    """
    begin, threads = time.perf_counter(), _thread_count()
    try:
        use_cpu(spec.kind)
        loaded = model_of(spec, {}).load()
        took_s, started = time.perf_counter() - begin, _thread_count() - threads
        usual = objective_of(spec).sizes(loaded.sizes) if spec.trains else loaded.sizes
        sizes = {**usual, **(params or {})}
        given_inputs.check_size(spec, sizes)
        graph = model_of(spec, sizes).facts()
        has_loss = not spec.trains and says_loss(spec, graph)
    except ModelMistake as mistake:
        return {"mistake": str(mistake), "hint": mistake.hint, "line": None}
    except BaseException as error:  # noqa: BLE001 - a user's file may fail in any way
        return {"mistake": one_line(error), "hint": "", "line": line_in(error, spec)}
    return {
        "attribute": loaded.attribute,
        "is_default": loaded.is_default,
        "sizes": usual,
        "of_model": list(loaded.sizes_of_model),
        "of_inputs": list(loaded.sizes_of_inputs),
        "has_loss": has_loss,
        "graph": {name: graph[name] for name in KEPT if name in graph},
        "import_s": took_s,
        "can_be_preloaded": started <= 0 and not _uses_cuda(),
    }


# An output of that name with no axis: what models of transformers give for labels.
LOSS_ITSELF: tuple[str, list[int]] = (LOSS, [])
# Of the graph's facts.
KEPT = (
    *("digest", "flops", "parameters", "constants", "floats", "other_bytes", "takes_images", "dtype"),
    *("takes", "gives", "data"),
)


def _thread_count() -> int:
    """Threads of this process, those of libraries too where the system tells them."""
    tasks = Path("/proc/self/task")
    return len([*tasks.iterdir()]) if os.path.isdir(tasks) else threading.active_count()


def _uses_cuda() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())
