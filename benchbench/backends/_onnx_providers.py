"""Execution providers of ONNX Runtime other than the CPU's and NVIDIA's, as kinds of devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from benchbench.arrays import Array, Floats
from benchbench.backends.base import SIDE
from benchbench.model.case import Dtype

IN_EVERY_BUILD = ("CPUExecutionProvider", "AzureExecutionProvider")


@dataclass(frozen=True, slots=True)
class Provider:
    """An execution provider and its options, by dtype where they differ.

    `memory`: ONNX Runtime's name of the memory in which inputs and outputs stay. If it is the host's, a step
    includes their copies.
    """

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    in_float32: Mapping[str, str] = field(default_factory=dict)
    in_float16: Mapping[str, str] = field(default_factory=dict)
    memory: str = "cpu"

    def options_for(self, dtype: Dtype) -> dict[str, str]:
        return {**self.options, **(self.in_float32 if dtype is Dtype.FLOAT32 else self.in_float16)}


# Kind of device → provider. Options are those of onnxruntime.ai/docs/execution-providers.
OTHER_PROVIDERS: Mapping[str, Provider] = MappingProxyType(
    {
        # The format NeuralNetwork, the default, computes in float16 on Apple's neural engine and GPU.
        "coreml": Provider("CoreMLExecutionProvider", {"ModelFormat": "MLProgram"}),
        "directml": Provider("DmlExecutionProvider", {"device_id": "0"}, memory="dml"),
        "migraphx": Provider("MIGraphXExecutionProvider", {"device_id": "0"}),
        "openvino_gpu": Provider(
            "OpenVINOExecutionProvider",
            {"device_type": "GPU"},
            in_float32={"precision": "FP32"},
            in_float16={"precision": "FP16"},
        ),
        "openvino_npu": Provider(
            "OpenVINOExecutionProvider", {"device_type": "NPU"}, in_float16={"precision": "FP16"}
        ),
        # Qualcomm's HTP computes float32 in float16 by default.
        "qnn": Provider(
            "QNNExecutionProvider",
            {"backend_path": "libQnnHtp.so"},
            in_float32={"enable_htp_fp16_precision": "0"},
            in_float16={"enable_htp_fp16_precision": "1"},
        ),
    }
)
PROVIDER_DTYPES = (Dtype.FLOAT32, Dtype.FLOAT16)


def undriven(providers: list[str], driven: Mapping[str, str]) -> dict[str, str]:
    """Providers of this build that no device uses → reason. `driven`: name by kind of device."""
    known = {*driven.values(), *(provider.name for provider in OTHER_PROVIDERS.values()), *IN_EVERY_BUILD}
    return {name: "accelbench does not drive this provider" for name in providers if name not in known}


def multiplied_by(start: Callable[[bytes], Any]) -> Callable[[Array, Array], Floats]:
    """Function that multiplies two square matrices in float32. `start` creates a session of a model."""

    def multiply(left: Array, right: Array) -> Floats:
        import numpy as np

        session = start(_product(right))
        (product,) = session.run(None, {"x": left.astype(np.float32)})
        return np.asarray(product, np.float64)

    return multiply


def _product(right: Array) -> bytes:
    """Model of a product with a constant matrix, as most models have: not every provider takes others."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, [SIDE, SIDE]) for end in "xy"]
    weight = numpy_helper.from_array(right.astype(np.float32), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "product", ends[:1], ends[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())
