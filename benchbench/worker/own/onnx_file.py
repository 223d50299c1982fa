"""An ONNX file of the user's as a workload: its sizes and inputs as its graph has them, its own weights."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
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
from benchbench.model.own import ModelSpec, other_than_file
from benchbench.worker.own import given_inputs
from benchbench.worker.own.onnx_floats import is_float, kind_of, save_widened
from benchbench.worker.own.source import Loaded, ModelMistake, array_type, axis_name, most_taps, shuffled
from benchbench.worker.own.workload import OwnOperation
from benchbench.workloads.base import SEED, DeviceContext, Program

DIGITS = 8  # of the digest
FEW = 64  # elements of an integer constant, such as a shape, whose values are part of the work
OTHER_MOST = 1  # integers that index no table are 0 or 1, as masks and kinds of tokens are
PASSED = {
    "Cast",
    "Identity",
    "Reshape",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
    "Flatten",
}  # on the way to a table


@dataclass(frozen=True)
class OnnxInference(OwnOperation):
    """The outputs of a graph that the user has as a file."""

    def load(self) -> Loaded:
        return loaded(self.spec)

    def graph_of(self) -> dict[str, Any]:
        return graph_of(self.spec, self.sizes)

    def made_inputs(self, number: int) -> dict[str, AnyArray]:
        return made_inputs(self.spec, self.sizes, number)

    def made_weights(self) -> dict[str, AnyArray]:
        """None besides those in the file."""
        return {}

    def refuses(self, dtype: Dtype) -> str:
        return super().refuses(dtype) or other_than_file(self.graph["dtype"], dtype)

    def build_onnx(self, context: DeviceContext, arrays: Mapping[str, Any]) -> Program:
        """The file as it is; where it is verified in a wider dtype than its own, a copy in that."""
        asked = str(context.dtype).removeprefix("torch.")
        is_wider = self.graph["dtype"] and asked != self.graph["dtype"]
        write = partial(save_widened, read(self.spec.file), asked) if is_wider else None

        def given(arrays: Mapping[str, Any]) -> tuple[Any, ...]:
            return tuple(context.put(array) for name, array in arrays.items() if self.is_input(name))

        return Program(OnnxFile(self.spec.file, write), given(arrays), inputs_of=given)


@cache
def read(file: str) -> Any:
    """The model with its weights. Raises ModelMistake."""
    import onnx

    try:
        model = onnx.load(file, load_external_data=False)
        _refuse_elsewhere(model, paths.resolved(Path(file).parent))
        onnx.load_external_data_for_model(model, str(Path(file).parent))
    except ModelMistake:
        raise
    except FileNotFoundError as error:
        missing = Path(error.filename or file).name
        raise ModelMistake(f"There is no file {missing}.", "Name it as seen from here.") from error
    except Exception as error:  # protobuf's own, which is no dependency of ours
        raise ModelMistake("It is no ONNX file.", "onnx.checker.check_model says what is wrong.") from error
    if not model.graph.output:
        raise ModelMistake("Its graph has no output.", "onnx.checker.check_model says what is wrong.")
    return model


def _refuse_elsewhere(model: Any, folder: Path) -> None:
    """Raise ModelMistake for a tensor whose numbers are in a file outside of the model's folder."""
    graphs = [model.graph, *model.functions]
    for graph in graphs:
        tensors = [*getattr(graph, "initializer", ())]
        for sparse in getattr(graph, "sparse_initializer", ()):
            tensors += [sparse.values, sparse.indices]
        for attribute in (each for node in graph.node for each in node.attribute):
            graphs += [attribute.g, *attribute.graphs]
            tensors += [attribute.t, *attribute.tensors]
        for tensor in tensors:
            for entry in tensor.external_data:
                if entry.key == "location" and not paths.resolved(folder / entry.value).is_relative_to(
                    folder
                ):
                    raise ModelMistake(
                        f"Its tensor {tensor.name} is in {entry.value!r:.100}, outside of its folder.",
                        "Keep the file of its weights beside it.",
                    )


def loaded(spec: ModelSpec) -> Loaded:
    """Its sizes: each axis without a number is a parameter, 1 unless somebody says."""
    model = read(spec.file)
    sizes: dict[str, Scalar] = {
        axis: 1 for _, axes in axes_of(model).items() for axis in axes if isinstance(axis, str)
    }
    return given_inputs.sized(spec, Loaded("model", True, lambda: model, {}, None, sizes))


def inputs_in(model: Any) -> list[Any]:
    """The inputs that are no weights: older files list these, too."""
    weights = {each.name for each in model.graph.initializer}
    return [each for each in model.graph.input if each.name not in weights]


def axes_of(model: Any) -> dict[str, list[int | str]]:
    """Input → its axes: a number, or the name of the parameter that is its size.

    The first axis is the `batch` where its name says so, or says nothing.
    """
    found: dict[str, list[int | str]] = {}
    names: dict[str, str] = {}
    for value in inputs_in(model):
        if not value.type.HasField("tensor_type"):
            raise ModelMistake(f"Its input {value.name} is no tensor.", "accelbench gives tensors only.")
        axes: list[int | str] = []
        for index, axis in enumerate(value.type.tensor_type.shape.dim):
            if axis.HasField("dim_value") and axis.dim_value > 0:
                axes.append(int(axis.dim_value))
                continue
            symbol = axis.dim_param or f"{value.name}_{index}"
            if symbol not in names:
                names[symbol] = axis_name(axis.dim_param, value.name, index)
            axes.append(names[symbol])
        found[value.name] = axes
    return found


def made_inputs(spec: ModelSpec, sizes: Mapping[str, Scalar], number: int) -> dict[str, AnyArray]:
    """Inputs of these sizes by name, drawn under a seed of that number.

    Floats are N(0, 1). Integers that index a table are any of its rows; bytes any byte; others 0 or 1, the
    first of a row 1, so that no mask hides a whole row. Or those of the user's file; others are
    these, shuffled.
    """
    if not spec.input:
        return _drawn(spec, sizes, number)
    arrays = given_inputs.in_place_of(spec, _drawn(spec, sizes, 0), (), sizes)
    return {name: shuffled(array, number) for name, array in arrays.items()} if number else arrays


def _drawn(spec: ModelSpec, sizes: Mapping[str, Scalar], number: int) -> dict[str, AnyArray]:
    import numpy as np

    model = read(spec.file)
    tables = rows_indexed(model)
    source = np.random.default_rng((SEED, number))
    found: dict[str, AnyArray] = {}
    for value in inputs_in(model):
        shape = [
            axis if isinstance(axis, int) else int(sizes.get(axis, 1)) for axis in axes_of(model)[value.name]
        ]
        kind = kind_of(value.type.tensor_type.elem_type)
        if is_float(kind):
            found[value.name] = source.standard_normal(shape).astype(np.float32)
        elif kind.kind in "iub":
            most = tables.get(value.name) or (256 if kind == np.uint8 else OTHER_MOST + 1)
            drawn = source.integers(0, most, shape)
            if most == OTHER_MOST + 1 and drawn.ndim:
                drawn[..., :1] = 1
            found[value.name] = drawn.astype(kind)
        else:
            raise ModelMistake(f"Its input {value.name} is of {kind}.", "accelbench draws numbers only.")
    return found


def rows_indexed(model: Any) -> dict[str, int]:
    """Input → how many rows the smallest table has that it indexes, perhaps reshaped on the way."""
    sizes = {each.name: list(each.dims) for each in model.graph.initializer}
    came_from = {value.name: value.name for value in inputs_in(model)}
    found: dict[str, int] = {}
    for node in model.graph.node:
        if node.op_type in PASSED and node.input[0] in came_from:
            came_from |= dict.fromkeys(node.output, came_from[node.input[0]])
        elif node.op_type == "Gather" and node.input[0] in sizes and node.input[1] in came_from:
            axis = next((each.i for each in node.attribute if each.name == "axis"), 0)
            name, rows = came_from[node.input[1]], int(sizes[node.input[0]][axis])
            found[name] = min(rows, found.get(name, rows))
    return found


def graph_of(spec: ModelSpec, sizes: Mapping[str, Scalar]) -> dict[str, Any]:
    """The facts of the file at these sizes: see `torch_graph.graph_of`. `dtype`: of its floats, else ""."""
    model = read(spec.file)
    arrays = made_inputs(spec, sizes, 0)
    shapes = _shapes(model, {name: list(array.shape) for name, array in arrays.items()})
    names = [value.name for value in model.graph.output]
    kinds = {
        value.name: kind_of(value.type.tensor_type.elem_type)
        for value in (*inputs_in(model), *model.graph.output)
    }
    if any(shapes.get(name) is None for name in names):  # what an inference of shapes cannot tell
        shapes |= {name: list(each.shape) for name, each in _run(spec.file, _typed(arrays, kinds)).items()}
    weights = [(math.prod(each.dims), kind_of(each.data_type)) for each in model.graph.initializer]
    moved = [*weights, *((math.prod(shapes[name] or []), kinds[name]) for name in (*arrays, *names))]
    floats = [str(kind) for kind in kinds.values() if is_float(kind)]
    return {
        "digest": sha256(json.dumps([*_told(model)]).encode()).hexdigest()[:DIGITS],
        "flops": sum(_flops(node, shapes) for node in model.graph.node),
        "taps": most_taps(each.dims for each in model.graph.initializer),
        "parameters": sum(count for count, kind in weights if is_float(kind)),
        "constants": 0,
        "floats": sum(count for count, kind in moved if is_float(kind)),
        "other_bytes": sum(count * kind.itemsize for count, kind in moved if not is_float(kind)),
        "outputs": {name: shapes[name] for name in names},
        "takes": [array_type(kinds[name], array.shape) for name, array in arrays.items()],
        "gives": [array_type(kinds[name], shapes[name] or ()) for name in names],
        "takes_images": False,  # which engines would lay out otherwise
        "integers": [name for name in names if not is_float(kinds[name])],
        "dtype": floats[0] if floats else "",
    }


def _shapes(model: Any, given: Mapping[str, list[int]]) -> dict[str, list[int] | None]:
    """The shapes of values at these inputs, as far as onnx infers them; None: not known."""
    import onnx
    from onnx import shape_inference

    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for value in fixed.graph.input:
        for axis, size in zip(value.type.tensor_type.shape.dim, given.get(value.name, ()), strict=False):
            axis.dim_value = size
    del fixed.graph.value_info[:]  # of other sizes
    for value in fixed.graph.output:
        value.type.tensor_type.ClearField("shape")
    graph = shape_inference.infer_shapes(fixed, data_prop=True).graph
    known: dict[str, list[int] | None] = {each.name: list(each.dims) for each in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        kind = value.type.tensor_type
        axes = [axis.dim_value if axis.HasField("dim_value") else -1 for axis in kind.shape.dim]
        known[value.name] = axes if kind.HasField("shape") and min(axes, default=0) >= 0 else None
    return known


def _typed(arrays: Mapping[str, AnyArray], kinds: Mapping[str, Any]) -> dict[str, AnyArray]:
    return {name: array.astype(kinds[name]) for name, array in arrays.items()}


def _run(file: str, arrays: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
    """The outputs, by ONNX Runtime where it is installed, else by onnx."""
    if find_spec("onnxruntime") is None:
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(read(file))
        return dict(zip(evaluator.output_names, evaluator.run(None, dict(arrays)), strict=True))
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(arrays)), strict=True))


def _flops(node: Any, shapes: Mapping[str, list[int] | None]) -> int:
    """Of products of matrices and convolutions, two for a multiplication with its sum; 0 of others."""
    known = [shapes.get(name) for name in (*node.input[:2], *node.output[:1])]
    if node.op_type not in ("MatMul", "Gemm", "Conv", "ConvTranspose") or None in known:
        return 0
    left, right, result = (each or [] for each in known)
    if node.op_type == "Conv":
        return 2 * math.prod(result) * math.prod(right[1:])
    if node.op_type == "ConvTranspose":
        return 2 * math.prod(left) * math.prod(right[1:])
    turned = any(each.name == "transA" and each.i for each in node.attribute)
    return 2 * math.prod(result) * (left[0] if turned else left[-1])


def _told(model: Any) -> Iterator[Any]:
    """What the work is told from: operators with their attributes, and how they follow each other.

    Names of values are what an exporter made up; so is the order of weights.
    """
    from onnx import numpy_helper

    numbers: dict[str, int] = {}

    def number(names: Iterable[str]) -> list[int]:
        return [numbers.setdefault(name, len(numbers)) for name in names]

    number(value.name for value in inputs_in(model))
    weights = {each.name: each for each in model.graph.initializer}
    for node in model.graph.node:
        held = [weights[name] for name in node.input if name in weights]
        constants = [
            numpy_helper.to_array(each).tolist()
            for each in held
            if not is_float(kind_of(each.data_type)) and math.prod(each.dims) <= FEW
        ]
        attributes = sorted(node.attribute, key=lambda each: str(each.name))
        digests = [sha256(each.SerializeToString(deterministic=True)).hexdigest() for each in attributes]
        kinds = [[list(each.dims), str(kind_of(each.data_type))] for each in held]
        yield [node.domain, node.op_type, digests, kinds, constants, number(node.input), number(node.output)]
    yield number(value.name for value in model.graph.output)
