"""Conversion of an ONNX model's floats to a wider dtype: weights, constants and casts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FLOATS = ("bfloat16", "float16", "float32", "float64")  # from narrow to wide


def is_float(kind: Any) -> bool:
    """True for a NumPy or ml_dtypes dtype among `FLOATS`."""
    return str(kind) in FLOATS


def dtype_of_element(element: int) -> Any:
    """NumPy dtype of an ONNX element type."""
    from onnx import helper

    return helper.tensor_dtype_to_np_dtype(element)


def widen(model: Any, dtype: str) -> Any:
    """Return a copy of the model with narrower floats in this dtype, including subgraphs and functions."""
    import onnx

    wide_model = onnx.ModelProto()
    wide_model.CopyFrom(model)
    elements = (onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT)
    wider_dtypes = {
        element: dtype
        for element in elements
        if FLOATS.index(str(dtype_of_element(element))) < FLOATS.index(dtype)
    }
    _widen_graph(wide_model.graph, wider_dtypes)
    for function in wide_model.functions:
        _widen_nodes(function.node, wider_dtypes)
    return wide_model


def save_widened(model: Any, dtype: str, path: Path) -> None:
    """Write a widened copy of the model. Its weights go to a second file, as one may be too small."""
    import onnx

    onnx.save(widen(model, dtype), path, save_as_external_data=True, location=f"{path.name}.data")


def _element(dtype: str) -> int:
    import numpy as np
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def _widen_graph(graph: Any, wider_dtypes: dict[int, str]) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        tensor = value.type.tensor_type
        if tensor.elem_type in wider_dtypes:
            tensor.elem_type = _element(wider_dtypes[tensor.elem_type])
    for weight in graph.initializer:
        _widen_tensor(weight, wider_dtypes)
    _widen_nodes(graph.node, wider_dtypes)


def _widen_nodes(nodes: Any, wider_dtypes: dict[int, str]) -> None:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _widen_tensor(attribute.t, wider_dtypes)
            if attribute.HasField("g"):
                _widen_graph(attribute.g, wider_dtypes)
            if attribute.name in ("to", "dtype", "output_datatype") and attribute.i in wider_dtypes:
                attribute.i = _element(wider_dtypes[attribute.i])


def _widen_tensor(tensor: Any, wider_dtypes: dict[int, str]) -> None:
    from onnx import numpy_helper

    if tensor.data_type in wider_dtypes:
        values = numpy_helper.to_array(tensor).astype(wider_dtypes[tensor.data_type])
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
