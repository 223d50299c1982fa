"""Evaluation of an ONNX file in float64 by onnx's evaluator, exactly or with random rounding errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from benchbench.arrays import AnyArray
from benchbench.model.case import Dtype
from benchbench.worker.random_cache import cached_normal
from benchbench.worker.user_models import onnx_file
from benchbench.worker.user_models.onnx_file import OnnxInference, dtype_of_element, widen
from benchbench.worker.user_models.workload import INPUT
from benchbench.worker.verify import relative_error
from benchbench.workloads.base import Draw
from benchbench.workloads.draw import SEED

FLOAT64_BITS = 53  # of the significand, including the implicit leading bit
# Operators that are whole layers. Engines round inside them, so their inputs are perturbed, too.
LAYERS = frozenset({"Attention", "GRU", "LSTM", "LayerNormalization", "MultiHeadAttention", "RNN"})
Terms = Callable[..., float]


def _axis_of(node: Any) -> int:
    return (
        node.axis if isinstance(getattr(node, "axis", None), int) else -1
    )  # in a function it may be a reference


# Operator that sums products → its number of terms, as a function of the node and its operands.
PRODUCTS: Mapping[str, Terms] = {
    "MatMul": lambda _, left, __: left.shape[-1],
    "Gemm": lambda node, left, *_: left.shape[0 if node.transA == 1 else -1],
    "Conv": lambda _, __, kernel, *___: kernel.size / kernel.shape[0],
    "ConvTranspose": lambda _, __, kernel, *___: kernel.size / kernel.shape[1],
    **dict.fromkeys(LAYERS, lambda _, x, *__: x.shape[-1]),
}
# Operator that sums other terms → their number, as a function of the node, its result and its operands.
SUMS: Mapping[str, Terms] = {
    "CumSum": lambda _, __, x, axis: x.shape[int(axis)],
    "Einsum": lambda _, result, *operands: math.sqrt(math.prod(x.size for x in operands) / result.size),
    **dict.fromkeys(("Softmax", "LogSoftmax"), lambda node, result, *_: result.shape[_axis_of(node)]),
    **dict.fromkeys(
        (
            *("AveragePool", "GlobalAveragePool", "ReduceL1", "ReduceL2", "ReduceLogSumExp"),
            *("ReduceMean", "ReduceSum", "ReduceSumSquare"),
        ),
        lambda _, result, x, *__: x.size / result.size,
    ),
}
FIRST_DEQUANTISED = 19  # opset from which onnx's evaluator has DequantizeLinear
SAMPLED_ROWS = 32  # rows of weights that are set to zero, one at a time
NO_CHANGE, MAX_CHANGE = 0.0, 1e9  # in units of the tolerance
Perturbation = Callable[[AnyArray, int], AnyArray]  # (values, bits) → values
SumError = Callable[[AnyArray, float], AnyArray]  # (values, number of terms) → values


def outputs(workload: OnnxInference, dtype: Dtype, number: int) -> dict[str, AnyArray]:
    """Outputs of the file, all operators computed in float64."""
    return _evaluate(workload, _inputs(workload, dtype, number))


def rounded_outputs(workload: OnnxInference, dtype: Dtype, seed: int, number: int = 0) -> dict[str, AnyArray]:
    """Outputs with each operator's result rounded at random to the dtype.

    This includes operators in loops, branches and functions. Where the file asks for a narrower dtype,
    results are rounded to that. Sums also get the error of their summation.
    """
    import numpy as np

    from benchbench.workloads._reference.rounding import (
        DRAWN_BITS,
        OPERAND_BITS,
        rounded_at_random,
        summed_at_random,
    )

    source = np.random.default_rng((SEED, seed))
    operand_bits = OPERAND_BITS.get(dtype, FLOAT64_BITS)

    def perturb(values: AnyArray, bits: int) -> AnyArray:
        bits = min(bits, operand_bits)
        return np.asarray(values * (1 + 2.0**-bits * source.uniform(-1, 1, values.shape)))

    def convert(values: AnyArray) -> AnyArray:
        return values if operand_bits == FLOAT64_BITS else rounded_at_random(values, operand_bits, source)

    bits_of = _narrower_bits(workload.spec.file, workload.graph["dtype"])
    _evaluator(workload.spec.file)  # imports the operator classes
    with _patched_operators(
        lambda name: min(DRAWN_BITS[dtype], bits_of.get(name, FLOAT64_BITS)),
        lambda values, bits: rounded_at_random(values, bits, source),
        perturb,
        convert,
        lambda values, terms: summed_at_random(values, terms, workload.draws_tolerated, source),
    ):
        return _evaluate(workload, _inputs(workload, dtype, number))


def plain_outputs(workload: OnnxInference, dtype: Dtype, number: int) -> dict[str, AnyArray] | None:
    """Outputs of onnx's evaluator in float32, with coordinates in float32 as engines compute them.

    None for other dtypes.
    """
    from onnx.reference import ReferenceEvaluator

    if dtype is not Dtype.FLOAT32 or workload.graph["dtype"] != Dtype.FLOAT32:
        return None
    model = onnx_file.read(workload.spec.file)
    evaluator = ReferenceEvaluator(model, new_ops=faster_operators(_opset_of(model)))
    arrays = _inputs(workload, dtype, number)
    inputs = {name: array.astype("float32") if is_float(array) else array for name, array in arrays.items()}
    with _narrow_coordinates():
        outputs = evaluator.run(None, inputs)
    return {name: widened(output) for name, output in zip(evaluator.output_names, outputs, strict=True)}


@contextmanager
def _narrow_coordinates() -> Iterator[None]:
    """Round the coordinates of Resize to float32. onnx's evaluator computes them in float64.

    It must have the function of onnx 1.20 and later for them; with an older one they stay as they are.
    """
    from onnx.reference.ops import op_resize

    name = "_compute_x_ori"
    original = getattr(op_resize, name, None)

    def narrow(*args: Any, **options: Any) -> Any:
        assert original
        coordinates, is_outside = original(*args, **options)
        return coordinates.astype("float32").astype(float), is_outside

    if original:
        setattr(op_resize, name, narrow)
    try:
        yield
    finally:
        if original:
            setattr(op_resize, name, original)


def row_gradients(
    workload: OnnxInference, tolerance: Mapping[str, float]
) -> Iterator[tuple[AnyArray, AnyArray, bool]]:
    """Yield the change of the outputs when a row is set to zero, for rows drawn at random.

    onnx's evaluator has no derivatives, so changes take their place, in units of the tolerance. Tables are
    left out, since inputs select few of their rows.
    """
    import numpy as np

    inputs = _inputs(workload, Dtype.FLOAT32, 0)
    exact = _evaluate(workload, inputs)
    rows = [*_rows(workload.spec.file)]
    source = np.random.default_rng(SEED)
    weights = _evaluator(workload.spec.file).rt_inits_
    changes: list[float] = []
    for index in source.permutation(len(rows))[:SAMPLED_ROWS]:
        name, axis, row = rows[index]
        weight = weights[name]
        weights[name] = weight.copy()
        weights[name][(slice(None),) * axis + (row,)] = 0
        try:
            outputs = _evaluate(workload, inputs)
        except Exception:  # noqa: BLE001 - operators raise anything for a weight that sets a shape, such as a scale
            changes.append(MAX_CHANGE)
            continue
        finally:
            weights[name] = weight
        changes.append(max(_change(outputs[name], exact[name], tolerance.get(name)) for name in exact))
    if changes:
        yield np.ones((len(changes), 1)), np.array(changes)[:, None], False


def _change(output: AnyArray, exact: AnyArray, tolerance: float | None) -> float:
    """Change of an output in units of its tolerance."""
    import numpy as np

    if tolerance is None or np.array_equal(output, exact):
        return NO_CHANGE
    if tolerance == 0 or output.shape != exact.shape or not np.isfinite(output).all():
        return MAX_CHANGE
    return min(MAX_CHANGE, relative_error(output, exact) / tolerance)


def _rows(file: str) -> Iterator[tuple[str, int, int]]:
    """Yield name, axis and index of each row of the weights; of right operands, each column."""
    nodes = onnx_file.read(file).graph.node
    tables = {node.input[0] for node in nodes if node.op_type == "Gather"}
    right_operands = {node.input[1] for node in nodes if node.op_type == "MatMul"}
    for name, weight in _evaluator(file).rt_inits_.items():
        if is_float(weight) and weight.size > 1 and name not in tables:
            axis = weight.ndim - 1 if name in right_operands else 0
            yield from ((name, axis, row) for row in range(weight.shape[axis]))


@contextmanager
def _patched_operators(
    bits_of: Callable[[str], int],
    finish: Perturbation,
    move: Perturbation,
    convert: Callable[[AnyArray], AnyArray],
    add: SumError,
) -> Iterator[None]:
    """Patch the operator classes to perturb their float results.

    Parameters
    ----------
    bits_of : callable
        Bits of the significand for a value's name.
    finish : callable
        Applied to every float result.
    move : callable
        Applied to the float inputs of whole layers.
    convert : callable
        Applied to the float operands of other products.
    add : callable
        Applied to the operands and results of sums.

    """
    classes = [*_classes_defining("run")]
    running: list[Any] = []  # nodes, since the `run` of a class may call its base's `run` for the same node

    def patched_run(original: Callable[..., Any]) -> Callable[..., Any]:
        def run(node: Any, *values: Any, **options: Any) -> tuple[Any, ...]:
            if any(other is node for other in running):
                outputs: tuple[Any, ...] = original(node, *values, **options)
                return outputs
            running.append(node)
            try:
                return perturbed_outputs(node, original, values, options)
            finally:
                running.pop()

        return run

    def perturbed_outputs(
        node: Any, original: Callable[..., Any], values: Any, options: Any
    ) -> tuple[Any, ...]:
        bits, operator = bits_of(node.onnx_node.output[0]), node.onnx_node.op_type
        if operator in LAYERS:
            values = tuple(move(widened(value), bits) if is_float(value) else value for value in values)
        elif operator in PRODUCTS or operator == "Einsum":
            values = tuple(convert(widened(value)) if is_float(value) else value for value in values)
        terms = PRODUCTS[operator](node, *values) if operator in PRODUCTS and is_float(values[0]) else 0.0
        if terms:
            values = (add(widened(values[0]), terms), *values[1:])
        outputs = original(node, *values, **options)
        if operator in SUMS and is_float(outputs[0]) and outputs[0].size:
            terms = SUMS[operator](node, outputs[0], *values)
        results = (widened(output) for output in outputs)
        if terms:
            results = (add(result, terms) if is_float(result) else result for result in results)
        return tuple(finish(result, bits) if is_float(result) else result for result in results)

    originals = {class_: vars(class_)["run"] for class_ in classes}
    for class_, run in originals.items():
        class_.run = patched_run(run)
    try:
        yield
    finally:
        for class_, run in originals.items():
            class_.run = run


def _classes_defining(method: str) -> Iterator[Any]:
    """Operator classes that define a method themselves, as unary and binary operators do."""
    from onnx.reference.op_run import OpRun

    waiting: list[Any] = [OpRun]
    while waiting:
        class_ = waiting.pop()
        waiting.extend(class_.__subclasses__())
        if method in vars(class_):
            yield class_


@cache
def _narrower_bits(file: str, dtype: str) -> dict[str, int]:
    """Significand bits of the values that the file computes in other dtypes than its own."""
    from onnx import shape_inference

    from benchbench.workloads._reference.rounding import DRAWN_BITS

    narrower = (Dtype.FLOAT16, Dtype.BFLOAT16, Dtype.FLOAT32)
    bits = {str(dtype): DRAWN_BITS[dtype] for dtype in narrower}
    values = shape_inference.infer_shapes(onnx_file.read(file)).graph.value_info
    dtypes = {
        value.name: str(dtype_of_element(value.type.tensor_type.elem_type))
        for value in values
        if _is_tensor(value)
    }
    return {
        name: bits[value_dtype]
        for name, value_dtype in dtypes.items()
        if value_dtype != dtype and value_dtype in bits
    }


def _is_tensor(value: Any) -> bool:
    return bool(value.type.HasField("tensor_type") and value.type.tensor_type.elem_type)


def _inputs(workload: OnnxInference, dtype: Dtype, number: int) -> dict[str, AnyArray]:
    arrays = workload.input_arrays(Draw(dtype, standard=cached_normal, renewed=lambda _: number))
    return {name.removeprefix(INPUT): widened(array) for name, array in arrays.items()}


def _evaluate(workload: OnnxInference, inputs: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
    """Outputs by name, in float64."""
    evaluator = _evaluator(workload.spec.file)
    outputs = evaluator.run(None, dict(inputs))
    return {name: widened(output) for name, output in zip(evaluator.output_names, outputs, strict=True)}


def is_float(value: Any) -> bool:
    return getattr(getattr(value, "dtype", None), "kind", "") == "f"


def widened(values: AnyArray) -> AnyArray:
    """Convert floats to float64; return other arrays unchanged."""
    return values.astype(float) if is_float(values) else values


@cache
def _evaluator(file: str) -> Any:
    """onnx's evaluator of the file, with every float in float64."""
    from onnx.reference import ReferenceEvaluator

    model = onnx_file.read(file)
    return ReferenceEvaluator(widen(model, "float64"), new_ops=faster_operators(_opset_of(model)))


def _opset_of(model: Any) -> int:
    """Version of ONNX's own operators in a file."""
    return next((entry.version for entry in model.opset_import if not entry.domain), FIRST_DEQUANTISED)


def faster_operators(opset: int) -> list[Any]:
    """Convolution and pooling by torch in float64, which onnx's evaluator computes element by element.

    And `DequantizeLinear`, which it has for the opsets from 19 only.
    """
    from onnx.reference.op_run import OpRun
    from onnx.reference.ops.op_max_pool import MaxPool as AnyMaxPool

    class Conv(OpRun):  # type: ignore[misc]
        op_domain = ""

        def _run(self, x: Any, w: Any, b: Any = None, **options: Any) -> tuple[Any, ...]:
            return (_convolve(x, w, b, **options),)

    class MaxPool(AnyMaxPool):  # type: ignore[misc]
        op_domain = ""

        def _run(self, x: Any, **options: Any) -> tuple[Any, ...]:
            is_simple = options.get("auto_pad") in (None, "NOTSET") and not options.get("ceil_mode")
            if not is_simple or len(self.output) > 1:
                outputs: tuple[Any, ...] = super()._run(x, **options)
                return outputs
            return (_pool(x, **options),)

    class DequantizeLinear(OpRun):  # type: ignore[misc]
        op_domain = ""

        def _run(
            self, x: Any, scale: Any, zero: Any = None, axis: int | None = None, **_: Any
        ) -> tuple[Any, ...]:
            along = [1] * x.ndim
            if scale.size > 1:
                along[1 if axis is None else axis] = -1
            offset = 0 if zero is None else zero.astype(float).reshape(along if zero.size > 1 else [])
            return ((x.astype(float) - offset) * scale.reshape(along if scale.size > 1 else []),)

    has_blocks = opset >= FIRST_DEQUANTISED
    return [Conv, MaxPool, *([] if has_blocks else [DequantizeLinear])]


def _convolve(
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
    stride, dilation = list(strides or [1] * axes), list(dilations or [1] * axes)
    padding = list(pads or [0] * 2 * axes)
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        padding = _same_padding(x.shape[2:], w.shape[2:], stride, dilation, upper=auto_pad == "SAME_UPPER")
    elif auto_pad == "VALID":
        padding = [0] * 2 * axes
    padded = torch.nn.functional.pad(torch.tensor(x), _torch_padding(padding, axes))
    convolve = (torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d)[axes - 1]
    bias = None if b is None else torch.tensor(b)
    result: AnyArray = convolve(padded, torch.tensor(w), bias, stride, 0, dilation, group or 1).numpy()
    return result


def _pool(
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
    padding = _torch_padding(list(pads or [0] * 2 * axes), axes)
    padded = torch.nn.functional.pad(torch.tensor(x), padding, value=-torch.inf)
    functional = torch.nn.functional
    pool = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)[axes - 1]
    stride, dilation = list(strides or [1] * axes), list(dilations or [1] * axes)
    result: AnyArray = pool(padded, list(kernel_shape), stride, 0, dilation).numpy()
    return result


def _torch_padding(padding: Sequence[int], axes: int) -> list[int]:
    """Convert ONNX padding, all beginnings first, to torch's: last axis first, beginning and end."""
    return [end for axis in reversed(range(axes)) for end in (padding[axis], padding[axis + axes])]


def _same_padding(
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    *,
    upper: bool,
) -> list[int]:
    """Padding for which the output has ceil(size / stride) elements per axis."""
    totals = [
        max(0, (-(-size // stride) - 1) * stride + (width - 1) * dilation + 1 - size)
        for size, width, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True)
    ]
    smaller = [total // 2 for total in totals]
    larger = [total - total // 2 for total in totals]
    return [*smaller, *larger] if upper else [*larger, *smaller]
