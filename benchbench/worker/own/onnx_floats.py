"""An ONNX model's floats in another type: weights, constants, and what the graph casts to a narrower one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FLOATS = ("bfloat16", "float16", "float32", "float64")  # the narrower before the wider


def is_float(kind: Any) -> bool:
    """Whether a dtype of NumPy's, or of ml_dtypes, is of floats that accelbench computes with."""
    return str(kind) in FLOATS


def kind_of(element: int) -> Any:
    """The dtype of a type of ONNX's."""
    from onnx import helper

    return helper.tensor_dtype_to_np_dtype(element)


def widened(model: Any, kind: str) -> Any:
    """A copy of the model whose narrower floats are of that kind, in inner graphs and functions, too."""
    import onnx

    found = onnx.ModelProto()
    found.CopyFrom(model)
    elements = (onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT)
    narrow = {each: kind for each in elements if FLOATS.index(str(kind_of(each))) < FLOATS.index(kind)}
    _widen_graph(found.graph, narrow)
    for function in found.functions:
        _widen_nodes(function.node, narrow)
    return found


def save_widened(model: Any, kind: str, path: Path) -> None:
    """Write that copy; its weights lie beside it where one file could not hold them."""
    import onnx

    onnx.save(widened(model, kind), path, save_as_external_data=True, location=f"{path.name}.data")


def _element(kind: str) -> int:
    import numpy as np
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(np.dtype(kind)))


def _widen_graph(graph: Any, narrow: dict[int, str]) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        tensor = value.type.tensor_type
        if tensor.elem_type in narrow:
            tensor.elem_type = _element(narrow[tensor.elem_type])
    for weight in graph.initializer:
        _widen_tensor(weight, narrow)
    _widen_nodes(graph.node, narrow)


def _widen_nodes(nodes: Any, narrow: dict[int, str]) -> None:
    for node in nodes:
        for each in node.attribute:
            if each.HasField("t"):
                _widen_tensor(each.t, narrow)
            if each.HasField("g"):
                _widen_graph(each.g, narrow)
            if each.name in ("to", "dtype", "output_datatype") and each.i in narrow:
                each.i = _element(narrow[each.i])


def _widen_tensor(tensor: Any, narrow: dict[int, str]) -> None:
    from onnx import numpy_helper

    if tensor.data_type in narrow:
        values = numpy_helper.to_array(tensor).astype(narrow[tensor.data_type])
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
