"""Models that one process of a run exported or compiled, kept in the run's folder for the others."""

from __future__ import annotations

import os
import shutil
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from benchbench.model.case import Dtype

if TYPE_CHECKING:
    from benchbench.workloads.base import Workload

EXPORTED = "ACCELBENCH_EXPORTED"  # the variable that names the folder of a run's models
FREE_TIMES = 10  # a model's size must be free on the disk, or it is not kept


def model_name(workload: Workload, dtype: Dtype, *how: object, suffix: str = ".onnx") -> str:
    """What the model of a workload is kept by: equal parameters and dtype have equal weights.

    `how`: what else it was made for.
    """
    kind = type(workload)
    text = " ".join(map(str, (kind.__module__, repr(workload), dtype, *how)))
    return f"{sha256(text.encode()).hexdigest()[:24]}{suffix}"


def kept_model(name: str) -> Path | None:
    """The file of that model, if a process of this run has left it."""
    path = _place_of(name)
    return path if path and os.path.isfile(path) else None


def run_cache(name: str) -> Path | None:
    """A folder of that name, made now, for what a run's processes leave each other; None outside of one."""
    exported = os.environ.get(EXPORTED)
    if exported is None:
        return None
    folder = Path(exported).with_name(name)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def is_any_kept() -> bool:
    """Whether a process of this run has left a model."""
    folder = os.environ.get(EXPORTED)
    return folder is not None and any(Path(folder).glob("*.onnx"))


def keep_model(path: Path, name: str) -> None:
    """Move the model to where it is kept, unless there is no such place or little room."""
    kept, size = _place_of(name), path.stat().st_size
    has_parts = os.path.exists(path.with_name(f"{path.name}.data"))  # weights of more than 2 GB lie beside it
    if kept is None or shutil.disk_usage(path).free < FREE_TIMES * size or has_parts:
        return
    kept.parent.mkdir(parents=True, exist_ok=True)
    path.replace(kept)  # one file system: both are in the run's folder


def _place_of(name: str) -> Path | None:
    folder = os.environ.get(EXPORTED)
    return Path(folder) / name if folder and name else None
