"""Workload of a user's ONNX file: sizes and inputs from its graph, and its own weights."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchbench import paths
from benchbench.arrays import AnyArray
from benchbench.backends._onnx import OnnxFile
from benchbench.model.case import Dtype, Scalar
from benchbench.model.user_model import ModelSpec, dtype_obstacle
from benchbench.worker.user_models import input_file, usage
from benchbench.worker.user_models.source import (
    LoadedModel,
    ModelMistake,
    array_type,
    axis_name,
    most_taps,
    shuffled,
)
from benchbench.worker.user_models.workload import ModelOperation
from benchbench.workloads.base import SEED, DeviceContext, Program

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


DIGEST_DIGITS = 8
MAX_CONSTANT = 64  # elements of an integer constant (such as a shape) whose values are part of the digest
MAX_OTHER_INTEGER = 1  # for inputs that do not index a table, such as masks and token types
# Operator of sklearn's converter that makes a dictionary by class of each sample's probabilities.
ZIPMAP = "ZipMap"
PASSED_OPERATORS = {  # allowed between an input and the table that it indexes
    "Cast",
    "Identity",
    "Reshape",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
    "Flatten",
}

RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
WEIGHT_POSITIONS = {  # operator with products → the position of its second operand
    **dict.fromkeys(
        ("Conv", "ConvInteger", "ConvTranspose", "Gemm", "MatMul", "MatMulInteger", *RECURRENT), 1
    ),
    **dict.fromkeys(("QLinearConv", "QLinearMatMul"), 3),
}


@dataclass(frozen=True)
class OnnxInference(ModelOperation):
    """The outputs of a graph in a user's ONNX file."""

    def load(self) -> LoadedModel:
        return load_model(self.spec)

    def graph_of(self) -> dict[str, Any]:
        return graph_of(self.spec, self.sizes)

    def make_inputs(self, number: int) -> dict[str, AnyArray]:
        return make_inputs(self.spec, self.sizes, number)

    def make_weights(self) -> dict[str, AnyArray]:
        """Empty: the weights are in the file."""
        return {}

    def refuses(self, dtype: Dtype) -> str:
        return super().refuses(dtype) or dtype_obstacle(self.graph["dtype"], dtype)

    def build_onnx(self, context: DeviceContext, arrays: Mapping[str, Any]) -> Program:
        """Program of the file, or of a copy in a wider dtype for verification."""
        dtype = str(context.dtype).removeprefix("torch.")
        is_wider = self.graph["dtype"] and dtype != self.graph["dtype"]
        model = read(self.spec.file)
        write: Callable[[Path], None] | None = None
        if is_wider:
            write = partial(save_widened, model, dtype)
        elif _is_changed(self.spec.file):
            write = partial(_save, model)

        def make_inputs(arrays: Mapping[str, Any]) -> tuple[Any, ...]:
            return tuple(context.put(array) for name, array in arrays.items() if self.is_input(name))

        return Program(OnnxFile(self.spec.file, write), make_inputs(arrays), inputs_of=make_inputs)


@cache
def read(file: str) -> Any:
    """The model with its weights. Raises ModelMistake."""
    import onnx

    try:
        model = onnx.load(file, load_external_data=False)
        _refuse_outside_folder(model, paths.resolved(Path(file).parent))
        onnx.load_external_data_for_model(model, str(Path(file).parent))
    except ModelMistake:
        raise
    except FileNotFoundError as error:
        missing = Path(error.filename or file).name
        raise ModelMistake(f"There is no file {missing}.", "Give a path from this folder.") from error
    except Exception as error:  # protobuf's own exceptions, and protobuf is not a dependency
        raise ModelMistake("It is not an ONNX file.", "onnx.checker.check_model explains why.") from error
    if not model.graph.output:
        raise ModelMistake("Its graph has no output.", "onnx.checker.check_model explains why.")
    sort_nodes(model.graph)
    drop_zipmaps(model.graph)
    return model


def drop_zipmaps(graph: Any) -> None:
    """Return the probabilities that a ZipMap gets, without the dictionaries that it makes of them."""
    import onnx

    zipmaps = {node.output[0]: node for node in graph.node if node.op_type == ZIPMAP}
    for value in graph.output:
        if node := zipmaps.get(value.name):
            classes = max(len(attribute.ints) + len(attribute.strings) for attribute in node.attribute)
            tensor = onnx.helper.make_tensor_value_info(
                node.input[0], onnx.TensorProto.FLOAT, [None, classes]
            )
            value.CopyFrom(tensor)
            graph.node.remove(node)


@cache
def _is_changed(file: str) -> bool:
    """True if the engines get a changed copy of the file; see `drop_zipmaps`."""
    import onnx

    return any(node.op_type == ZIPMAP for node in onnx.load(file, load_external_data=False).graph.node)


def sort_nodes(graph: Any) -> None:
    """Put nodes after those that compute their inputs, as not all converters do. Sorted ones stay."""
    waiting = list(graph.node)
    computed = {name for node in waiting for name in node.output}
    in_order: list[Any] = []
    while waiting:
        later: list[Any] = []
        for node in waiting:
            if computed.isdisjoint(node.input):
                computed.difference_update(node.output)
                in_order.append(node)
            else:
                later.append(node)
        if len(later) == len(waiting):  # a cycle, which the engines report
            in_order += later
            break
        waiting = later
    if any(left is not right for left, right in zip(graph.node, in_order, strict=True)):
        nodes = [type(node).FromString(node.SerializeToString()) for node in in_order]
        del graph.node[:]
        graph.node.extend(nodes)


def _refuse_outside_folder(model: Any, folder: Path) -> None:
    """Raise ModelMistake if a tensor's data is in a file outside the model's folder."""
    graphs = [model.graph, *model.functions]
    for graph in graphs:
        tensors = [*getattr(graph, "initializer", ())]
        for sparse in getattr(graph, "sparse_initializer", ()):
            tensors += [sparse.values, sparse.indices]
        for attribute in (attribute for node in graph.node for attribute in node.attribute):
            graphs += [attribute.g, *attribute.graphs]
            tensors += [attribute.t, *attribute.tensors]
        for tensor in tensors:
            for entry in tensor.external_data:
                if entry.key == "location" and not paths.resolved(folder / entry.value).is_relative_to(
                    folder
                ):
                    raise ModelMistake(
                        f"Its tensor {tensor.name} is in {entry.value!r:.100}, outside of its folder.",
                        "Keep the weights file in the folder of the model.",
                    )


def load_model(spec: ModelSpec) -> LoadedModel:
    """Describe the sizes of the model: each symbolic axis is a parameter with default 1."""
    model = read(spec.file)
    for value in model.graph.output:
        if not value.type.HasField("tensor_type"):
            raise ModelMistake(
                f"Its output {value.name} is not a tensor.",
                "accelbench compares tensors: let the model return them.",
            )
    sizes: dict[str, Scalar] = {
        axis: 1 for _, axes in input_axes(model).items() for axis in axes if isinstance(axis, str)
    }
    return input_file.with_file_sizes(spec, LoadedModel("model", True, lambda: model, {}, None, sizes))


def graph_inputs(model: Any) -> list[Any]:
    """Inputs that are not weights; older files list weights as inputs, too."""
    weights = {weight.name for weight in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in weights]


def input_axes(model: Any) -> dict[str, list[int | str]]:
    """The axes of each input: a fixed length, or the name of the size parameter; see `axis_name`."""
    axes_by_input: dict[str, list[int | str]] = {}
    names: dict[str, str] = {}
    for value in graph_inputs(model):
        if not value.type.HasField("tensor_type"):
            raise ModelMistake(f"Its input {value.name} is not a tensor.", "accelbench passes only tensors.")
        axes: list[int | str] = []
        for index, axis in enumerate(value.type.tensor_type.shape.dim):
            if axis.HasField("dim_value") and axis.dim_value > 0:
                axes.append(int(axis.dim_value))
                continue
            symbol = axis.dim_param or f"{value.name}_{index}"
            if symbol not in names:
                names[symbol] = axis_name(axis.dim_param, value.name, index)
            axes.append(names[symbol])
        axes_by_input[value.name] = axes
    return axes_by_input


def make_inputs(spec: ModelSpec, sizes: Mapping[str, Scalar], number: int) -> dict[str, AnyArray]:
    """Draw inputs of these sizes by name, with the seed of this number.

    Floats are N(0, 1). Integers that index a table are rows of it, bytes are any byte. Other integers are 0
    or 1, and the first of a row is 1, so that no mask hides a whole row. With a file of inputs, number 0 is
    the file's arrays and other numbers are these, shuffled.
    """
    if not spec.input:
        return _drawn_inputs(spec, sizes, number)
    arrays = input_file.arrays_for(spec, _drawn_inputs(spec, sizes, 0), (), sizes)
    return {name: shuffled(array, number) for name, array in arrays.items()} if number else arrays


def _drawn_inputs(spec: ModelSpec, sizes: Mapping[str, Scalar], number: int) -> dict[str, AnyArray]:
    import numpy as np

    model = read(spec.file)
    tables = table_sizes(model)
    source = np.random.default_rng((SEED, number))
    inputs: dict[str, AnyArray] = {}
    for value in graph_inputs(model):
        shape = [
            axis if isinstance(axis, int) else int(sizes.get(axis, 1))
            for axis in input_axes(model)[value.name]
        ]
        dtype = dtype_of_element(value.type.tensor_type.elem_type)
        if is_float(dtype):
            inputs[value.name] = source.standard_normal(shape).astype(np.float32)
        elif dtype.kind in "iub":
            upper_bound = tables.get(value.name) or (256 if dtype == np.uint8 else MAX_OTHER_INTEGER + 1)
            integers = source.integers(0, upper_bound, shape)
            if upper_bound == MAX_OTHER_INTEGER + 1 and integers.ndim:
                integers[..., :1] = 1
            inputs[value.name] = integers.astype(dtype)
        else:
            raise ModelMistake(f"Its input {value.name} has dtype {dtype}.", "accelbench draws only numbers.")
    return inputs


def table_sizes(model: Any) -> dict[str, int]:
    """Rows of the smallest table that each input indexes, perhaps after reshapes and casts."""
    sizes = {weight.name: list(weight.dims) for weight in model.graph.initializer}
    source_inputs = {value.name: value.name for value in graph_inputs(model)}
    rows_by_input: dict[str, int] = {}
    for node in model.graph.node:
        if node.op_type in PASSED_OPERATORS and node.input[0] in source_inputs:
            source_inputs |= dict.fromkeys(node.output, source_inputs[node.input[0]])
        elif node.op_type == "Gather" and node.input[0] in sizes and node.input[1] in source_inputs:
            axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
            name, rows = source_inputs[node.input[1]], int(sizes[node.input[0]][axis])
            rows_by_input[name] = min(rows, rows_by_input.get(name, rows))
    return rows_by_input


def graph_of(spec: ModelSpec, sizes: Mapping[str, Scalar]) -> dict[str, Any]:
    """Facts of the file at these sizes; see `torch_graph.graph_of`.

    `dtype` is the dtype of its floats, or "" if there are none.
    """
    model = read(spec.file)
    arrays = make_inputs(spec, sizes, 0)
    shapes = _shapes(model, {name: list(array.shape) for name, array in arrays.items()})
    names = [value.name for value in model.graph.output]
    dtypes = {
        value.name: dtype_of_element(value.type.tensor_type.elem_type)
        for value in (*graph_inputs(model), *model.graph.output)
    }
    if any(shapes.get(name) is None for name in names):  # shape inference failed
        inputs = {name: array.astype(dtypes[name]) for name, array in arrays.items()}
        outputs = _evaluate(spec.file, inputs)
        shapes |= {name: list(output.shape) for name, output in outputs.items()}
    weights = [
        (math.prod(weight.dims), dtype_of_element(weight.data_type)) for weight in model.graph.initializer
    ]
    moved_tensors = [*weights, *((math.prod(shapes[name] or []), dtypes[name]) for name in (*arrays, *names))]
    floats = [str(dtype) for dtype in dtypes.values() if is_float(dtype)]
    return {
        "digest": sha256(json.dumps([*_operator_facts(model)]).encode()).hexdigest()[:DIGEST_DIGITS],
        "flops": _flops_of_graph(model.graph.node, shapes),
        "taps": most_taps(weight.dims for weight in model.graph.initializer),
        "parameters": sum(count for count, dtype in weights if is_float(dtype)),
        "constants": 0,
        "floats": sum(count for count, dtype in moved_tensors if is_float(dtype)),
        "other_bytes": sum(count * dtype.itemsize for count, dtype in moved_tensors if not is_float(dtype)),
        "outputs": {name: shapes[name] for name in names},
        "takes": [array_type(dtypes[name], array.shape) for name, array in arrays.items()],
        "gives": [array_type(dtypes[name], shapes[name] or ()) for name in names],
        "takes_images": False,  # images with a layout that engines may change
        "integers": [name for name in names if not is_float(dtypes[name])],
        "dtype": floats[0] if floats else "",
        "omits": ZIPMAP if _is_changed(spec.file) else "",
        **usage.onnx_setup(spec, {name: array.astype(dtypes[name]) for name, array in arrays.items()}),
    }


def _shapes(model: Any, input_shapes: Mapping[str, list[int]]) -> dict[str, list[int] | None]:
    """Shapes of values at these input shapes, as inferred by onnx; None if unknown."""
    import onnx
    from onnx import shape_inference

    fixed_model = onnx.ModelProto()
    fixed_model.CopyFrom(model)
    for value in fixed_model.graph.input:
        for axis, size in zip(
            value.type.tensor_type.shape.dim, input_shapes.get(value.name, ()), strict=False
        ):
            axis.dim_value = size
    del fixed_model.graph.value_info[:]  # of other sizes
    for value in fixed_model.graph.output:
        value.type.tensor_type.ClearField("shape")
    graph = shape_inference.infer_shapes(fixed_model, data_prop=True).graph
    shapes: dict[str, list[int] | None] = {weight.name: list(weight.dims) for weight in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor_type = value.type.tensor_type
        axes = [axis.dim_value if axis.HasField("dim_value") else -1 for axis in tensor_type.shape.dim]
        shapes[value.name] = axes if tensor_type.HasField("shape") and min(axes, default=0) >= 0 else None
    return shapes


def _save(model: Any, path: Path) -> None:
    import onnx

    onnx.save(model, path)


def _evaluate(file: str, arrays: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
    """Run the model with ONNX Runtime if it is installed, otherwise with onnx."""
    if find_spec("onnxruntime") is None:
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(read(file))
        return dict(zip(evaluator.output_names, evaluator.run(None, dict(arrays)), strict=True))
    import onnxruntime

    content = read(file).SerializeToString() if _is_changed(file) else file
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(arrays)), strict=True))


def _flops_of_graph(nodes: Iterable[Any], shapes: Mapping[str, list[int] | None]) -> int:
    """FLOPs of the products in a graph; 0, as if there were none, if those of one are not known."""
    counts = [_flops(node, shapes) for node in nodes if node.op_type in WEIGHT_POSITIONS]
    return 0 if None in counts else sum(filter(None, counts))


def _flops(node: Any, shapes: Mapping[str, list[int] | None]) -> int | None:
    """FLOPs of a matrix product, convolution or recurrent layer, two per multiply-add; None if not known."""
    position = WEIGHT_POSITIONS[node.op_type]
    operands = (node.input[0], node.input[position], node.output[0])
    if node.op_type in RECURRENT:  # the result may be left out
        operands = (node.input[0], node.input[1], node.input[2])
    operand_shapes = [shapes.get(name) for name in operands]
    if None in operand_shapes:
        return None
    left, right, result = (shape or [] for shape in operand_shapes)
    if node.op_type in RECURRENT:  # a product with the inputs and one with the state for each step and sample
        return 2 * left[0] * left[1] * (math.prod(right) + math.prod(result))
    if "Conv" in node.op_type and node.op_type != "ConvTranspose":
        return 2 * math.prod(result) * math.prod(right[1:])
    if node.op_type == "ConvTranspose":
        return 2 * math.prod(left) * math.prod(right[1:])
    is_transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
    return 2 * math.prod(result) * (left[0] if is_transposed else left[-1])


def _operator_facts(model: Any) -> Iterator[Any]:
    """Operators with their attributes and connections, which identify the work.

    Names of values are left out, since exporters invent them, and so is the order of weights.
    """
    from onnx import numpy_helper

    numbers: dict[str, int] = {}

    def number(names: Iterable[str]) -> list[int]:
        return [numbers.setdefault(name, len(numbers)) for name in names]

    number(value.name for value in graph_inputs(model))
    weights = {weight.name: weight for weight in model.graph.initializer}
    for node in model.graph.node:
        node_weights = [weights[name] for name in node.input if name in weights]
        constants = [
            numpy_helper.to_array(weight).tolist()
            for weight in node_weights
            if not is_float(dtype_of_element(weight.data_type)) and math.prod(weight.dims) <= MAX_CONSTANT
        ]
        attributes = sorted(node.attribute, key=lambda attribute: str(attribute.name))
        digests = [
            sha256(attribute.SerializeToString(deterministic=True)).hexdigest() for attribute in attributes
        ]
        types = [[list(weight.dims), str(dtype_of_element(weight.data_type))] for weight in node_weights]
        yield [node.domain, node.op_type, digests, types, constants, number(node.input), number(node.output)]
    yield number(value.name for value in model.graph.output)
