"""ONNX models: exported from torch, quantised, and kept for the other processes of a run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Set
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchbench.errors import Unsupported
from benchbench.machine.kernel import cpu_flags
from benchbench.model.case import Dtype

if TYPE_CHECKING:
    from benchbench.workloads.base import Workload

EXPORTED = "ACCELBENCH_EXPORTED"  # the variable that names the folder of a run's models
FREE_TIMES = 10  # a model's size must be free on the disk, or it is not kept
PROVIDER = "CPUExecutionProvider"
RECURRENT = {"GRU", "LSTM", "RNN"}  # ONNX's operators
SUMS_IN_32_BITS = {"amx_int8", "avx512_vnni", "avx_vnni"}  # of x86: products of int8, at once
QUANTISED_APART = {"Softmax"}  # 1/256 steps are too coarse for weights of 1/length


def model_name(workload: Workload, dtype: Dtype) -> str:
    """What the model of a workload is kept by: equal parameters and dtype have equal weights."""
    kind = type(workload)
    return sha256(f"{kind.__module__} {workload!r} {dtype}".encode()).hexdigest()[:24]


def kept_model(name: str) -> Path | None:
    """The file of that model, if a process of this run has exported it."""
    path = _place_of(name)
    return path if path and os.path.isfile(path) else None


def is_any_kept() -> bool:
    """Whether a process of this run has exported a model."""
    folder = os.environ.get(EXPORTED)
    return folder is not None and any(Path(folder).glob("*.onnx"))


def keep_model(path: Path, name: str) -> None:
    """Move the model to where it is kept, unless there is no such place or little room."""
    kept, size = _place_of(name), path.stat().st_size
    if kept is None or shutil.disk_usage(path).free < FREE_TIMES * size or _has_parts(path):
        return
    kept.parent.mkdir(parents=True, exist_ok=True)
    path.replace(kept)  # one file system: both are in the run's folder


def _place_of(name: str) -> Path | None:
    folder = os.environ.get(EXPORTED)
    return Path(folder) / f"{name}.onnx" if folder and name else None


def _has_parts(path: Path) -> bool:
    """Whether weights lie in a file beside it, as those of more than 2 GB do."""
    return os.path.exists(path.with_name(f"{path.name}.data"))


def export_model(step: Callable[..., Any], inputs: tuple[Any, ...], folder: Path) -> Path:
    """An ONNX file of `step` in `folder`; weights the step holds become constants, as in a deployed model."""
    import torch

    class Exported(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.step = step  # a module's buffers are then its own, and may change

        def forward(self, *arguments: Any) -> Any:
            return self.step(*arguments)

    path = folder / "model.onnx"
    with torch.no_grad():
        torch.onnx.export(Exported(), inputs, dynamo=True, verbose=False).save(path)
    return path


def saturates(flags: Set[str]) -> bool:
    """Whether CPUs with these instruction sets add two products of int8 in 16 bits, which may not hold them.

    x86 without VNNI does (VPMADDUBSW); ONNX Runtime's page on quantisation advises weights of 7 bits there.
    """
    return "avx2" in flags and not flags & SUMS_IN_32_BITS


def quantise(path: Path, inputs: tuple[Any, ...]) -> Path:
    """Static quantisation by ONNX Runtime's own quantiser, calibrated on the inputs that are timed.

    Unsigned activations and signed weights by channel: what its CPU kernels are fastest with. Weights have
    7 bits where the CPU `saturates`. Raises Unsupported for a recurrent layer, which the quantiser leaves as
    it is.
    """
    import onnx
    from onnxruntime import InferenceSession
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from onnxruntime.quantization.registry import QDQRegistry
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared, quantised = path.with_name("prepared.onnx"), path.with_name("quantised.onnx")
    quant_pre_process(path, prepared, skip_symbolic_shape=True)
    kinds = {node.op_type for node in onnx.load(prepared, load_external_data=False).graph.node}
    if left := kinds & RECURRENT - {*QDQRegistry}:
        raise Unsupported(f"ONNX Runtime's quantiser leaves {', '.join(sorted(left))} in float32")
    names = [each.name for each in InferenceSession(prepared, providers=[PROVIDER]).get_inputs()]

    class Once(CalibrationDataReader):  # type: ignore[misc]
        feeds = iter([{name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}])

        def get_next(self) -> Any:
            return next(self.feeds, None)

    quantize_static(
        prepared,
        quantised,
        Once(),
        per_channel=True,
        reduce_range=saturates(cpu_flags(Path("/"))),
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        op_types_to_quantize=sorted({*QDQRegistry} - QUANTISED_APART),
    )
    return quantised
