"""Comparison of the results of two functions for the same inputs, as evidence for a claimed speed-up.

Both functions get equal copies of the inputs, first as they are, then with the elements of each float array
in another order: a function that returns a stored result differs there.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from benchbench.backends.base import Backend
from benchbench.errors import UsageError, one_line
from benchbench.model.function import Agreement
from benchbench.worker.call import Arguments, Message, ModelCall, bound_call, require_finished

SEED = 20261128  # of the order of shuffled inputs
# Spacing of numbers around 1, by dtype: 2 to the power of minus the stored bits of the significand.
SPACINGS = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "complex128": 2.0**-52,
    "complex64": 2.0**-23,
}
# With a float64 reference, the second function may be twice as far from it as the first, as in torch's own
# benchmarks of compiled models, or this many spacings.
FACTOR, FLOOR = 2.0, 8.0
SPACINGS_APART = 256.0  # allowed between the two results without a reference
MAX_ALLOWED = 0.05

Function = Callable[..., Any]


def compare_calls(_: Backend, job: Message) -> Message:
    """Compare the results of the two functions of a job. The reply has an `Agreement`, or `refused`."""
    folder = Path(job["folder"])
    try:
        first, arguments = bound_call(job["first"], folder)
        second, _no_arguments = bound_call({**job["second"], "setup": None, "arguments": ""}, folder)
    except UsageError as error:
        return {"refused": str(error), "hint": error.hint}
    return {"agreement": dataclasses.asdict(compare_functions(first, second, arguments))}


def compare_functions(first: Function, second: Function, arguments: Arguments) -> Agreement:
    """Whether both functions return the same for equal inputs, up to rounding.

    Shuffled inputs may be invalid, such as a matrix that is no longer symmetric. They count only if the first
    function returns finite numbers for them.
    """
    if reason := share_weights(first, second):
        return Agreement(equal=None, reason=reason)
    agreement = _compare_at(first, second, _transformed(arguments, _copied))
    if not (agreement.equal and _has_floats(arguments)):
        return agreement
    shuffled = _compare_at(first, second, _transformed(arguments, _shuffled), only_finite=True)
    if shuffled.equal is False:
        return dataclasses.replace(shuffled, reason=f"with shuffled inputs, {shuffled.reason}")
    return dataclasses.replace(agreement, inputs=agreement.inputs + shuffled.inputs)


def _compare_at(
    first: Function,
    second: Function,
    arguments: Arguments,
    *,
    only_finite: bool = False,
) -> Agreement:
    """Compare the results for one set of arguments. `only_finite`: ignore expected results that are not."""
    try:
        expected, again = (_leaves(_result(first, arguments)) for _ in range(2))
    except Exception as error:  # noqa: BLE001 - a user's function may raise anything
        return Agreement(equal=None, reason=f"the first function fails: {one_line(error)}")
    if not _compare(expected, again, None).equal:
        return Agreement(equal=None, reason="the first function returns something else in each call")
    if only_finite and not _all_finite(expected):
        return Agreement(equal=None, reason="the results are not finite")
    try:
        results = _leaves(_result(second, arguments))
    except Exception as error:  # noqa: BLE001
        return Agreement(equal=False, reason=f"the second function fails: {one_line(error)}")
    return _compare(expected, results, _reference(first, arguments))


def share_weights(first: Function, second: Function) -> str:
    """Give the second of two models the first one's weights. Returns the reason if that is impossible."""
    source, target = (getattr(function, "module", None) for function in (first, second))
    if source is None or target is None:
        return ""
    weights, target_weights = source.state_dict(), target.state_dict()
    shapes = {name: tensor.shape for name, tensor in weights.items()}
    target_shapes = {name: tensor.shape for name, tensor in target_weights.items()}
    if shapes != target_shapes:
        if [*shapes.values()] != [*target_shapes.values()]:
            return "the weights of the two models have other names and shapes"
        weights = dict(zip(target_weights, weights.values(), strict=True))
    target.load_state_dict(weights)
    return ""


def _result(function: Function, arguments: Arguments) -> Any:
    """The result for copies of the arguments. Raises UsageError if the work is not done."""
    positional, keywords = _transformed(arguments, _copied)
    result = function(*positional, **keywords)
    require_finished(result)
    return result


def _reference(function: Function, arguments: Arguments) -> list[Any] | None:
    """The function's results in float64; None if it does not compute in float64."""
    with suppress(Exception), _float64_of_jax(arguments):
        wide = function
        if isinstance(function, ModelCall):
            wide = ModelCall(copy.deepcopy(function.module).double())
        results = _leaves(_result(wide, _transformed(arguments, _widened)))
        if all(_dtype(leaf) == _wide_dtype(leaf) for leaf in results if _dtype(leaf) in SPACINGS):
            return results
    return None


def _float64_of_jax(arguments: Arguments) -> Any:
    """A context in which JAX computes in float64, if there are arrays of JAX."""
    parts: list[Any] = []
    _transformed(arguments, parts.append)
    if not any(type(part).__module__.startswith("jax") for part in parts):
        return nullcontext()
    import jax

    return jax.enable_x64(True)


def _compare(expected: list[Any], results: list[Any], reference: list[Any] | None) -> Agreement:
    """Compare two lists of results; the reason has the largest error and the allowed one."""
    if len(expected) != len(results):
        return Agreement(equal=False, reason=f"{len(results)} results instead of {len(expected)}")
    worst, text = -1.0, "equal"
    for number, (expected_value, value) in enumerate(zip(expected, results, strict=True)):
        spacing = SPACINGS.get(_dtype(expected_value))
        if spacing is None:
            if _difference(expected_value, value) != 0:
                return Agreement(equal=False, reason=f"result {number} differs")
            continue
        if reference is None:
            error, allowed = _difference(expected_value, value), min(SPACINGS_APART * spacing, MAX_ALLOWED)
            against = "the other result; no float64 reference"
        else:
            first_error = _difference(reference[number], expected_value)
            error = _difference(reference[number], value)
            allowed = min(max(FACTOR * first_error, FLOOR * spacing), MAX_ALLOWED)
            against = f"float64, the first function has {first_error:.2g}"
        description = f"error {error:.2g} against {against}; allowed {allowed:.2g}"
        if not error <= allowed:
            return Agreement(equal=False, reason=f"result {number}: {description}")
        if error / allowed > worst:
            worst, text = error / allowed, description
    return Agreement(equal=True, reason=text, inputs=1)


def _difference(expected: Any, value: Any) -> float:
    """Largest difference of the elements over the root mean square of the expected ones; ∞ for other shapes.

    Elements that are not finite, and those that are no floats, must be equal.
    """
    import numpy as np

    a, b = _array(expected), _array(value)
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return 0.0 if expected == value else math.inf
    if a.shape != b.shape:
        return math.inf
    if _dtype(expected) not in SPACINGS:
        return 0.0 if np.array_equal(a, b) else math.inf
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return math.inf
    if not finite.any():
        return 0.0
    scale = math.sqrt(float(np.mean(np.abs(a[finite]) ** 2))) or 1.0
    return float(np.max(np.abs(a[finite] - b[finite]))) / scale


def _leaves(result: Any) -> list[Any]:
    """The arrays, numbers and other objects in the containers of a result, in order."""
    leaves: list[Any] = []
    _transformed(result, leaves.append)
    return leaves


def _transformed(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same containers with `change` applied to each object in them."""
    if isinstance(value, Mapping):
        return {key: _transformed(part, change) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_transformed(part, change) for part in value))
    if isinstance(value, list | tuple):
        return type(value)(_transformed(part, change) for part in value)
    return change(value)


def _dtype(value: Any) -> str:
    """Name of an array's dtype, without its framework; the widest for Python's own fractions."""
    if isinstance(value, float | complex):
        return "float64" if isinstance(value, float) else "complex128"
    dtype = getattr(value, "dtype", "")
    return str(getattr(dtype, "name", dtype)).rpartition(".")[2]


def _wide_dtype(value: Any) -> str:
    return "complex128" if _dtype(value).startswith("complex") else "float64"


def _array(value: Any) -> Any:
    """A NumPy array of the values, with floats in float64; other objects unchanged."""
    import numpy as np

    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if not hasattr(value, "numpy") or str(value.dtype) == "torch.bfloat16":
            value = value.double()
    if not hasattr(value, "dtype") and not isinstance(value, bool | int | float | complex):
        return value
    array = np.asarray(value)
    return array.astype(_wide_dtype(value)) if _dtype(value) in SPACINGS else array


def _copied(value: Any) -> Any:
    if hasattr(value, "detach"):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if type(value).__module__.startswith("jax"):
        return value  # immutable
    with suppress(Exception):
        return copy.deepcopy(value)
    return value


def _widened(value: Any) -> Any:
    """The array in float64; other objects are copied."""
    if _dtype(value) not in SPACINGS or isinstance(value, float | complex):
        return _copied(value)
    if hasattr(value, "detach"):
        import torch

        wide = value.detach().to(getattr(torch, _wide_dtype(value)))
        return wide.requires_grad_(value.requires_grad)
    if hasattr(value, "astype"):
        return value.astype(_wide_dtype(value))
    import tensorflow as tf

    return tf.cast(value, _wide_dtype(value))


def _shuffled(value: Any) -> Any:
    """The array with its elements in another order; other objects are copied."""
    if _dtype(value) not in SPACINGS or isinstance(value, float | complex):
        return _copied(value)
    import numpy as np

    shape = tuple(value.shape)
    order = np.random.default_rng(SEED).permutation(math.prod(shape))
    if hasattr(value, "detach"):
        import torch

        flat = value.detach().reshape(-1)[torch.from_numpy(order).to(value.device)]
        return flat.reshape(shape).requires_grad_(value.requires_grad)
    if hasattr(value, "reshape"):
        return value.reshape(-1)[order].reshape(shape)
    import tensorflow as tf

    return tf.reshape(tf.gather(tf.reshape(value, [-1]), order), shape)


def _has_floats(arguments: Arguments) -> bool:
    return any(
        _dtype(leaf) in SPACINGS and not isinstance(leaf, float | complex) for leaf in _leaves(arguments)
    )


def _all_finite(leaves: list[Any]) -> bool:
    import numpy as np

    return all(bool(np.isfinite(_array(leaf)).all()) for leaf in leaves if _dtype(leaf) in SPACINGS)
