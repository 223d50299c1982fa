"""An ONNX file evaluated in float64 by onnx's evaluator, with each operator's result rounded at random."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from benchbench.arrays import AnyArray
from benchbench.model.case import Dtype
from benchbench.worker.own import onnx_file
from benchbench.worker.own.onnx_file import OnnxInference
from benchbench.workloads.draw import SEED

BITS = {Dtype.FLOAT64: 24, Dtype.FLOAT32: 24, Dtype.TF32: 24, Dtype.FLOAT16: 11, Dtype.BFLOAT16: 8}
OF_FLOAT64 = 53  # bits of the significand
HUGE = 1e300  # a mask's value: no number that is rounded
# Operators that are whole layers: engines round within them, so their inputs are moved by a rounding, too.
LAYERS = frozenset({"Attention", "GRU", "LSTM", "LayerNormalization", "MultiHeadAttention", "RNN"})
Finish = Callable[[AnyArray], AnyArray]


def outputs(workload: OnnxInference, dtype: Dtype, number: int) -> dict[str, AnyArray]:  # noqa: ARG001 - any has its own inputs
    """Every operator computes in float64, whatever the file asks for."""
    return _evaluated(workload, number, lambda values: values, lambda values: values)


def rounded_outputs(workload: OnnxInference, dtype: Dtype, seed: int) -> dict[str, AnyArray]:
    """Every operator's result is rounded at random to the dtype."""
    import numpy as np

    source = np.random.default_rng((SEED, seed))
    unit = 2.0 ** -BITS[dtype]

    def moved(values: AnyArray) -> AnyArray:
        return np.asarray(values * (1 + unit * source.uniform(-1, 1, values.shape)))

    return _evaluated(workload, 0, lambda values: rounded(values, BITS[dtype], source), moved)


def row_gradients(
    workload: OnnxInference,  # noqa: ARG001 - as of other kinds
    tolerance: Mapping[str, float],  # noqa: ARG001
) -> Iterator[tuple[AnyArray, AnyArray, bool]]:
    """None: the evaluator has no derivatives, so it is not counted what verification cannot see."""
    return iter(())


def rounded(values: AnyArray, bits: int, source: Any) -> AnyArray:
    """Float64 numbers at one of their two neighbours of so many bits: random low bits are added, then cut."""
    import numpy as np

    step = 1 << (OF_FLOAT64 - bits)
    noise = source.integers(0, step, values.shape, dtype=np.int64)
    found = ((np.ascontiguousarray(values).view(np.int64).reshape(values.shape) + noise) & -step).view(float)
    return np.where(np.abs(values) < HUGE, found, values)


def _evaluated(workload: OnnxInference, number: int, finish: Finish, move: Finish) -> dict[str, AnyArray]:
    """The outputs by name. `finish`: each operator's result; `move`: what a whole layer is given."""
    evaluator = _evaluator(workload.spec.file)
    plain = [node.run for node in evaluator.rt_nodes_]
    for node, run in zip(evaluator.rt_nodes_, plain, strict=True):
        node.run = _finished(run, finish, move if node.op_type in LAYERS else None)
    try:
        given = {name: wide(each) for name, each in workload.made_inputs(number).items()}
        found = evaluator.run(None, given)
    finally:
        for node in evaluator.rt_nodes_:
            del node.run
    return {name: wide(each) for name, each in zip(evaluator.output_names, found, strict=True)}


def _finished(run: Callable[..., Any], finish: Finish, move: Finish | None) -> Callable[..., Any]:
    def each(values: Sequence[Any], change: Finish) -> tuple[Any, ...]:
        return tuple(change(wide(value)) if is_float(value) else value for value in values)

    def finished(*values: Any, **more: Any) -> tuple[Any, ...]:
        return each(run(*(each(values, move) if move else values), **more), finish)

    return finished


def is_float(value: Any) -> bool:
    return getattr(getattr(value, "dtype", None), "kind", "") == "f"


def wide(values: AnyArray) -> AnyArray:
    """Floats in float64, others as they are."""
    return values.astype(float) if is_float(values) else values


@cache
def _evaluator(file: str) -> Any:
    """onnx's evaluator of the file with every float in float64."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    model = onnx.ModelProto()
    model.CopyFrom(onnx_file.read(file))
    widen(model.graph)
    for function in model.functions:
        _widen_nodes(function.node)
    return ReferenceEvaluator(model, new_ops=fast_operators())


def widen(graph: Any) -> None:
    """Every float of a graph in float64: weights, constants, and what is cast to a narrower type."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type in _narrow():
            value.type.tensor_type.elem_type = _double()
    for weight in graph.initializer:
        _widen_tensor(weight)
    _widen_nodes(graph.node)


def _widen_nodes(nodes: Any) -> None:
    for node in nodes:
        for each in node.attribute:
            if each.HasField("t"):
                _widen_tensor(each.t)
            if each.HasField("g"):
                widen(each.g)
            if each.name in ("to", "dtype", "output_datatype") and each.i in _narrow():
                each.i = _double()


def _widen_tensor(tensor: Any) -> None:
    from onnx import numpy_helper

    if tensor.data_type in _narrow():
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(float), tensor.name))


def _narrow() -> tuple[int, ...]:
    from onnx import TensorProto

    return (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def _double() -> int:
    from onnx import TensorProto

    return int(TensorProto.DOUBLE)


def fast_operators() -> list[Any]:
    """Convolutions and pooling, which onnx's evaluator computes element by element, by torch in float64."""
    from onnx.reference.op_run import OpRun
    from onnx.reference.ops.op_max_pool import MaxPool as AnyMaxPool

    class Conv(OpRun):  # type: ignore[misc]
        op_domain = ""

        def _run(self, x: Any, w: Any, b: Any = None, **asked: Any) -> tuple[Any, ...]:
            return (_convolved(x, w, b, **asked),)

    class MaxPool(AnyMaxPool):  # type: ignore[misc]
        op_domain = ""

        def _run(self, x: Any, **asked: Any) -> tuple[Any, ...]:
            plain = asked.get("auto_pad") in (None, "NOTSET") and not asked.get("ceil_mode")
            if not plain or len(self.output) > 1:
                found: tuple[Any, ...] = super()._run(x, **asked)
                return found
            return (_pooled(x, **asked),)

    return [Conv, MaxPool]


def _convolved(
    x: AnyArray,
    w: AnyArray,
    b: AnyArray | None,
    *,
    auto_pad: str | None = None,
    dilations: Sequence[int] | None = None,
    group: int | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    **_: Any,
) -> AnyArray:
    import torch

    axes = x.ndim - 2
    steps, holes = list(strides or [1] * axes), list(dilations or [1] * axes)
    ends = list(pads or [0] * 2 * axes)
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        ends = _same(x.shape[2:], w.shape[2:], steps, holes, upper=auto_pad == "SAME_UPPER")
    elif auto_pad == "VALID":
        ends = [0] * 2 * axes
    padded = torch.nn.functional.pad(torch.tensor(x), _around(ends, axes))
    convolve = (torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d)[axes - 1]
    bias = None if b is None else torch.tensor(b)
    found: AnyArray = convolve(padded, torch.tensor(w), bias, steps, 0, holes, group or 1).numpy()
    return found


def _pooled(
    x: AnyArray,
    *,
    kernel_shape: Sequence[int],
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    **_: Any,
) -> AnyArray:
    import torch

    axes = x.ndim - 2
    around = _around(list(pads or [0] * 2 * axes), axes)
    padded = torch.nn.functional.pad(torch.tensor(x), around, value=-torch.inf)
    functional = torch.nn.functional
    pool = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)[axes - 1]
    steps, holes = list(strides or [1] * axes), list(dilations or [1] * axes)
    found: AnyArray = pool(padded, list(kernel_shape), steps, 0, holes).numpy()
    return found


def _around(ends: Sequence[int], axes: int) -> list[int]:
    """ONNX's paddings, all beginnings first, as torch has them: of the last axis first, beginning and end."""
    return [end for axis in reversed(range(axes)) for end in (ends[axis], ends[axis + axes])]


def _same(
    sizes: Sequence[int], kernel: Sequence[int], steps: Sequence[int], holes: Sequence[int], *, upper: bool
) -> list[int]:
    """Paddings by which the result has as many elements as steps fit into an axis."""
    total = [
        max(0, (-(-size // step) - 1) * step + (width - 1) * hole + 1 - size)
        for size, width, step, hole in zip(sizes, kernel, steps, holes, strict=True)
    ]
    less, more = [each // 2 for each in total], [each - each // 2 for each in total]
    return [*less, *more] if upper else [*more, *less]
