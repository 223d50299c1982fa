"""An ONNX file evaluated in float64 by onnx's evaluator, with each operator's result rounded at random."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from benchbench.arrays import AnyArray
from benchbench.model.case import Dtype
from benchbench.worker.own import onnx_file
from benchbench.worker.own.onnx_file import OnnxInference
from benchbench.worker.own.onnx_floats import kind_of, widened
from benchbench.worker.own.workload import INPUT
from benchbench.worker.random_cache import cached_normal
from benchbench.worker.verify import relative_error
from benchbench.workloads.base import Draw
from benchbench.workloads.draw import SEED

OF_FLOAT64 = 53  # bits of the significand, the leading one included
BITS = {Dtype.FLOAT64: 24, Dtype.FLOAT32: 24, Dtype.TF32: 24, Dtype.FLOAT16: 11, Dtype.BFLOAT16: 8}
# Operators that are whole layers: engines round within them, so their inputs are moved by a rounding, too.
LAYERS = frozenset({"Attention", "GRU", "LSTM", "LayerNormalization", "MultiHeadAttention", "RNN"})
Terms = Callable[..., float]


def _axis_of(node: Any) -> int:
    return node.axis if isinstance(getattr(node, "axis", None), int) else -1  # a function's may be linked


# Operators that add up products → of how many terms, by the node and its operands.
PRODUCTS: Mapping[str, Terms] = {
    "MatMul": lambda _, left, __: left.shape[-1],
    "Gemm": lambda node, left, *_: left.shape[0 if node.transA == 1 else -1],
    "Conv": lambda _, __, kernel, *___: kernel.size / kernel.shape[0],
    "ConvTranspose": lambda _, __, kernel, *___: kernel.size / kernel.shape[1],
    **dict.fromkeys(LAYERS, lambda _, x, *__: x.shape[-1]),
}
# Operators that add up other terms → how many, by the node, its result and its operands.
SUMS: Mapping[str, Terms] = {
    "CumSum": lambda _, __, x, axis: x.shape[int(axis)],
    "Einsum": lambda _, found, *given: math.sqrt(math.prod(x.size for x in given) / found.size),
    **dict.fromkeys(("Softmax", "LogSoftmax"), lambda node, found, *_: found.shape[_axis_of(node)]),
    **dict.fromkeys(
        (
            *("AveragePool", "GlobalAveragePool", "ReduceL1", "ReduceL2", "ReduceLogSumExp"),
            *("ReduceMean", "ReduceSum", "ReduceSumSquare"),
        ),
        lambda _, found, x, *__: x.size / found.size,
    ),
}
SAMPLED = 32  # rows of weights that are set to zero, one after the other
UNSEEN, BEYOND = 0.0, 1e9  # a change that does not reach an output, and one that nothing tolerates
Finish = Callable[[AnyArray, int], AnyArray]  # of values, at so many bits
Sum = Callable[[AnyArray, float], AnyArray]  # of values, that are sums of so many terms, or these


def outputs(workload: OnnxInference, dtype: Dtype, number: int) -> dict[str, AnyArray]:
    """Every operator computes in float64, whatever the file asks for."""
    return _evaluated(workload, _inputs(workload, dtype, number))


def rounded_outputs(workload: OnnxInference, dtype: Dtype, seed: int, number: int = 0) -> dict[str, AnyArray]:
    """Every operator's result is rounded at random to the dtype, those in loops, branches and functions, too.

    To a narrower one where the file asks for that. And what is added up errs.
    """
    import numpy as np

    from benchbench.workloads._reference.rounding import rounded_at_random, summed_at_random

    source = np.random.default_rng((SEED, seed))

    def moved(values: AnyArray, bits: int) -> AnyArray:
        return np.asarray(values * (1 + 2.0**-bits * source.uniform(-1, 1, values.shape)))

    bits_of = _narrowed(workload.spec.file, workload.graph["dtype"])
    _evaluator(workload.spec.file)  # imports the kinds of its operators
    with _finishing(
        lambda name: min(BITS[dtype], bits_of.get(name, OF_FLOAT64)),
        lambda values, bits: rounded_at_random(values, bits, source),
        moved,
        lambda values, terms: summed_at_random(values, terms, workload.draws_tolerated, source),
    ):
        return _evaluated(workload, _inputs(workload, dtype, number))


def row_gradients(
    workload: OnnxInference, tolerance: Mapping[str, float]
) -> Iterator[tuple[AnyArray, AnyArray, bool]]:
    """Of some rows, drawn at random: what each does to the outputs is told by setting it to zero.

    The evaluator has no derivatives: the change stands in their place, in units of what is tolerated. Tables
    are left out, of whose rows inputs look up few.
    """
    import numpy as np

    given = _inputs(workload, Dtype.FLOAT32, 0)
    exact = _evaluated(workload, given)
    rows = [*_rows(workload.spec.file)]
    source = np.random.default_rng(SEED)
    held = _evaluator(workload.spec.file).rt_inits_
    changes: list[float] = []
    for index in source.permutation(len(rows))[:SAMPLED]:
        name, axis, row = rows[index]
        weight = held[name]
        held[name] = weight.copy()
        held[name][(slice(None),) * axis + (row,)] = 0
        try:
            found = _evaluated(workload, given)
        finally:
            held[name] = weight
        changes.append(max(_change(found[each], exact[each], tolerance.get(each)) for each in exact))
    if changes:
        yield np.ones((len(changes), 1)), np.array(changes)[:, None], False


def _change(found: AnyArray, exact: AnyArray, tolerance: float | None) -> float:
    """How far an output has moved, in units of what is tolerated."""
    import numpy as np

    if tolerance is None or np.array_equal(found, exact):
        return UNSEEN
    if tolerance == 0 or not np.isfinite(found).all():
        return BEYOND
    return min(BEYOND, relative_error(found, exact) / tolerance)


def _rows(file: str) -> Iterator[tuple[str, int, int]]:
    """The rows of weights: name, axis and index. What is multiplied from the right has columns instead."""
    nodes = onnx_file.read(file).graph.node
    tables = {node.input[0] for node in nodes if node.op_type == "Gather"}
    right = {node.input[1] for node in nodes if node.op_type == "MatMul"}
    for name, weight in _evaluator(file).rt_inits_.items():
        if is_float(weight) and weight.size > 1 and name not in tables:
            axis = weight.ndim - 1 if name in right else 0
            yield from ((name, axis, row) for row in range(weight.shape[axis]))


@contextmanager
def _finishing(bits_of: Callable[[str], int], finish: Finish, move: Finish, add: Sum) -> Iterator[None]:
    """Every operator's float results pass `finish`, and what a whole layer is given `move`.

    What adds up is given, and gives, what passes `add`. `bits_of`: of the value that is called so.
    """
    kinds = [*_defining("run")]
    running: list[Any] = []  # nodes: a kind's `run` may call that of its base for the same node

    def finishing(plain: Callable[..., Any]) -> Callable[..., Any]:
        def finished(node: Any, *values: Any, **more: Any) -> tuple[Any, ...]:
            if any(each is node for each in running):
                found: tuple[Any, ...] = plain(node, *values, **more)
                return found
            running.append(node)
            try:
                return computed(node, plain, values, more)
            finally:
                running.pop()

        return finished

    def computed(node: Any, plain: Callable[..., Any], values: Any, more: Any) -> tuple[Any, ...]:
        bits, kind = bits_of(node.onnx_node.output[0]), node.onnx_node.op_type
        if kind in LAYERS:
            values = tuple(move(wide(each), bits) if is_float(each) else each for each in values)
        terms = PRODUCTS[kind](node, *values) if kind in PRODUCTS and is_float(values[0]) else 0.0
        if terms:
            values = (add(wide(values[0]), terms), *values[1:])
        found = plain(node, *values, **more)
        if kind in SUMS and is_float(found[0]) and found[0].size:
            terms = SUMS[kind](node, found[0], *values)
        results = (wide(each) for each in found)
        if terms:
            results = (add(each, terms) if is_float(each) else each for each in results)
        return tuple(finish(each, bits) if is_float(each) else each for each in results)

    plain = {each: vars(each)["run"] for each in kinds}
    for each, run in plain.items():
        each.run = finishing(run)
    try:
        yield
    finally:
        for each, run in plain.items():
            each.run = run


def _defining(method: str) -> Iterator[Any]:
    """The kinds of operators that define a method themselves, as unary and binary ones do theirs."""
    from onnx.reference.op_run import OpRun

    waiting: list[Any] = [OpRun]
    while waiting:
        kind = waiting.pop()
        waiting.extend(kind.__subclasses__())
        if method in vars(kind):
            yield kind


@cache
def _narrowed(file: str, kind: str) -> dict[str, int]:
    """Value → its bits, of those that the file computes in other floats than its own kind."""
    from onnx import shape_inference

    bits = {"float16": BITS[Dtype.FLOAT16], "bfloat16": BITS[Dtype.BFLOAT16], "float32": BITS[Dtype.FLOAT32]}
    values = shape_inference.infer_shapes(onnx_file.read(file)).graph.value_info
    kinds = {each.name: str(kind_of(each.type.tensor_type.elem_type)) for each in values if _is_tensor(each)}
    return {name: bits[other] for name, other in kinds.items() if other != kind and other in bits}


def _is_tensor(value: Any) -> bool:
    return bool(value.type.HasField("tensor_type") and value.type.tensor_type.elem_type)


def _inputs(workload: OnnxInference, dtype: Dtype, number: int) -> dict[str, AnyArray]:
    arrays = workload.input_arrays(Draw(dtype, standard=cached_normal, renewed=lambda _: number))
    return {name.removeprefix(INPUT): wide(array) for name, array in arrays.items()}


def _evaluated(workload: OnnxInference, given: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
    """The outputs by name, in float64."""
    evaluator = _evaluator(workload.spec.file)
    found = evaluator.run(None, dict(given))
    return {name: wide(each) for name, each in zip(evaluator.output_names, found, strict=True)}


def is_float(value: Any) -> bool:
    return getattr(getattr(value, "dtype", None), "kind", "") == "f"


def wide(values: AnyArray) -> AnyArray:
    """Floats in float64, others as they are."""
    return values.astype(float) if is_float(values) else values


@cache
def _evaluator(file: str) -> Any:
    """onnx's evaluator of the file with every float in float64."""
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(widened(onnx_file.read(file), "float64"), new_ops=fast_operators())


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
