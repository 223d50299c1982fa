"""Evaluation of torch modules in float64, exactly or with the rounding errors of a narrower dtype.

`module.double()` is not enough: modules narrow their computations, for example by `.to(torch.float32)` before
a norm. These modes intercept every operator below autograd. `Widening` makes it compute in float64.
`Rounding` also rounds each result at random to a neighbour in the dtype (Connolly, Higham & Mary 2021,
"Stochastic rounding and its probabilistic backward error analysis"). Needs torch.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from benchbench.model.case import Dtype
from benchbench.workloads._reference.rounding import DRAWN_BITS, HUGE, OPERAND_BITS, error_in_turn

WIDE = {
    **dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float64),
    **dict.fromkeys((torch.complex32, torch.complex64), torch.complex128),
}
STORED_BITS = {Dtype.AMP_BF16: 24}  # of parameters and optimizer state, if different
FLOAT64_BITS = 53
CONSTANTS = frozenset(("full", "scalar_tensor"))  # aten operators whose last argument is the value
GROUPED = "_grouped_mm"  # aten's product per group of rows, as in a mixture of experts
# aten operators that tensor cores compute.
MATRICES = frozenset(("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", GROUPED))
PRODUCTS = MATRICES | {"convolution", "convolution_backward"}
# aten operators that sum many elements without products.
SUMS = frozenset(
    (
        *("sum", "mean", "var", "var_mean", "embedding_dense_backward"),
        *("native_batch_norm", "native_batch_norm_backward", "native_layer_norm_backward"),
        *("native_group_norm_backward", "_native_batch_norm_legit", "_batch_norm_with_update"),
    )
)
ACCUMULATOR_ROUNDOFF = 2.0**-24  # unit roundoff of the format of sums
# aten operators that sum exponentials: an error of their inputs would differ from an error of the terms.
EXPONENTIALS = frozenset(("_softmax", "_log_softmax", "logsumexp"))
BETAS = "betas"  # key of a parameter group in Adam and similar optimizers
# aten operators whose fourth and fifth arguments are running statistics.
BATCH_NORMS = frozenset(("native_batch_norm", "cudnn_batch_norm", "_batch_norm_with_update"))
# aten operators that return indices chosen by comparison.
SELECTIONS = frozenset(("argmax", "argmin", "argsort", "kthvalue", "max", "median", "min", "sort", "topk"))
NARROW_BITS = {torch.float16: 11, torch.bfloat16: 8}  # of the significand
REQUESTED = "_requested_dtype"  # attribute of float64 tensors that the module has in a narrower dtype
PLAIN_DTYPES = {  # in which an ordinary kernel computes
    Dtype.FLOAT32: torch.float32,
    Dtype.TF32: torch.float32,
    Dtype.AMP_BF16: torch.float32,  # except products
    Dtype.FLOAT16: torch.float16,
    Dtype.BFLOAT16: torch.bfloat16,
}
# aten operators whose gradient jumps at zero.
KINKED = ("relu", "relu_", "leaky_relu", "leaky_relu_", "threshold", "threshold_", "abs")
Operator = Any


def _count(x: Any, dims: Any = None, *_: Any) -> float:
    """Number of elements of a tensor along these axes, or of all."""
    if dims is None or dims == [] or not x.dim():
        return float(x.numel())
    return float(math.prod(x.shape[dim] for dim in (dims if isinstance(dims, list | tuple) else [dims])))


def _convolution_terms(_: Any, weight: Any, *asked: Any) -> float:
    *_, transposed, _, groups = asked
    return float(weight.numel() / (weight.shape[1] * groups if transposed else weight.shape[0]))


def _batch_norm_terms(x: Any, *options: Any) -> float:
    is_training = options[-3]
    return float(x.numel() / x.shape[1]) if is_training else 0.0


# aten operator that sums → its number of terms, as a function of its arguments.
TERM_COUNTS: dict[str, Callable[..., float]] = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot"), lambda left, _: left.shape[-1]),
    **dict.fromkeys((GROUPED, "grouped_mm_fallback"), lambda left, *_: left.shape[-1]),
    **dict.fromkeys(("addmm", "baddbmm", "addmv"), lambda _, left, *__: left.shape[-1]),
    "convolution": _convolution_terms,
    **dict.fromkeys(("sum", "mean", "var", "var_mean", "std", "cumsum", *EXPONENTIALS), _count),
    "linalg_vector_norm": lambda x, _=2, dims=None, *__: _count(x, dims),
    **dict.fromkeys(("native_layer_norm", "_fused_rms_norm"), lambda _, shape, *__: math.prod(shape)),
    **dict.fromkeys(("native_batch_norm", "_native_batch_norm_legit"), _batch_norm_terms),
    "native_group_norm": lambda x, _, __, count, ___, ____, groups, _____: x.numel() / (count * groups),
}


class Decision(NamedTuple):
    """Indices that an operator selected along an axis by comparing scores; None: along all axes."""

    indices: Any
    scores: Any
    dim: int | None


class Widening(TorchDispatchMode):  # type: ignore[misc]
    """Make every operator compute in float64.

    Attributes
    ----------
    narrowed : int
        Number of requests for narrower dtypes.
    narrow_dtype : torch.dtype or None
        The 16-bit dtype that the module asks for in the present operator, as mixed precision does.

    """

    def __init__(self) -> None:
        super().__init__()
        self.narrowed = 0
        self.narrow_dtype: torch.dtype | None = None

    def __torch_dispatch__(self, func: Operator, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.narrow_dtype = _requested_narrow_dtype(args, kwargs or {})
        args, kwargs = tree_map(self._wide, (args, kwargs or {}))
        result = tree_map(_widened, self.compute(func, args, kwargs))
        if self.narrow_dtype:
            tree_map(partial(_request, dtype=self.narrow_dtype), result)
        return result

    def compute(self, func: Operator, args: Any, kwargs: Any) -> Any:
        """The operator's result."""
        name = func.overloadpacket.__name__
        if name == GROUPED:  # it has no kernel for float64
            return grouped_product(*args, **kwargs)
        if name in CONSTANTS and isinstance(args[-1], float) and kwargs.get("dtype") is None:
            kwargs = {**kwargs, "dtype": torch.float64}  # float32 cannot hold the smallest float64
        return func(*args, **kwargs)

    def _wide(self, value: Any) -> Any:
        if isinstance(value, torch.dtype) and value in WIDE:
            self.narrowed += 1
            return WIDE[value]
        return _widened(value)


class Selecting(Widening):
    """Exact, and records indices that operators selected in `decisions`."""

    def __init__(self) -> None:
        super().__init__()
        self.decisions: list[Decision] = []

    def compute(self, func: Operator, args: Any, kwargs: Any) -> Any:
        result = super().compute(func, args, kwargs)
        name = func.overloadpacket.__name__
        indices = result[1] if isinstance(result, tuple | list) and len(result) > 1 else result
        if name in SELECTIONS and isinstance(indices, torch.Tensor) and not indices.is_floating_point():
            self.decisions.append(Decision(indices, args[0], _selected_axis(name, args, kwargs)))
        return result


def _requested_narrow_dtype(args: Any, kwargs: Any) -> torch.dtype | None:
    """The 16-bit dtype in which the module computes an operator; None: the dtype of the case.

    It is requested in an argument, or all float operands have it. Tensors without axes take no part in type
    promotion.
    """
    leaves = tree_leaves((args, kwargs))
    requested = [leaf for leaf in leaves if isinstance(leaf, torch.dtype) and leaf.is_floating_point]
    if requested:
        return requested[-1] if requested[-1] in NARROW_BITS else None
    floats = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    dtypes = {getattr(tensor, REQUESTED, None) for tensor in [x for x in floats if x.dim()] or floats}
    return dtypes.pop() if len(dtypes) == 1 else None


def _request(value: Any, dtype: torch.dtype) -> Any:
    """Mark a float64 tensor that the module has in a narrower dtype."""
    if isinstance(value, torch.Tensor) and value.dtype is torch.float64:
        setattr(value, REQUESTED, dtype)
    return value


def _selected_axis(name: str, args: Any, kwargs: Any) -> int | None:
    """The axis along which an operator selects; all axes are None, as for `argmax` by default."""
    position = 2 if name in ("topk", "kthvalue") else 1
    axis = kwargs.get("dim", args[position] if len(args) > position else None)
    if isinstance(axis, int) and not isinstance(axis, bool):
        return axis
    return None if name in ("argmax", "argmin") else -1


def grouped_product(left: Any, right: Any, offs: Any = None, *_: Any, **__: Any) -> Any:
    """`torch.nn.functional.grouped_mm` by a product per group, in the dtype of `left`.

    `offs` has the end of each group along the axis that only matrices have: rows of `left` (m, k), columns of
    `right` (k, n), or the summed axis of both. A tensor with three axes has a matrix for each group.
    """
    if offs is None:
        return torch.bmm(left, right)
    ends = offs.tolist()
    groups = [slice(begin, end) for begin, end in zip((0, *ends), ends, strict=False)]
    if left.dim() == right.dim():
        return torch.stack([left[:, group] @ right[group] for group in groups])
    if left.dim() == 2:
        result = left.new_zeros(left.shape[0], right.shape[-1])
        for number, group in enumerate(groups):
            result[group] = left[group] @ right[number]
        return result
    result = right.new_zeros(left.shape[1], right.shape[-1])
    for number, group in enumerate(groups):
        result[:, group] = left[number] @ right[:, group]
    return result


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in WIDE:
        return value.to(WIDE[value.dtype])
    return value


def _asks_for_integers(kwargs: Any) -> bool:
    """True if an integer dtype is requested: counts have no summation error."""
    dtype = kwargs.get("dtype")
    return isinstance(dtype, torch.dtype) and not (dtype.is_floating_point or dtype.is_complex)


class Rounding(Widening):
    """Round every operator's result to a dtype at random; each seed draws differently.

    `sums` adds the error of sequential summation in float32 to operands, √(n/2)·u for n terms. Sums in the
    backward pass are long and may nearly cancel, for example where a norm subtracts the mean. `nearest`
    rounds to nearest, as engines do, so that an update far below the spacing of a parameter is lost.
    `tolerated` adds the error of sums in the forward pass, for draws that are tolerated that many times.
    """

    def __init__(
        self, dtype: Dtype, seed: int, *, sums: bool = False, nearest: bool = False, tolerated: float = 0.0
    ) -> None:
        super().__init__()
        self._sums, self._nearest, self._tolerated = sums, nearest, tolerated
        self._computed, self._stored = DRAWN_BITS[dtype], STORED_BITS.get(dtype, DRAWN_BITS[dtype])
        self._bits = self._computed
        self._operand_bits = OPERAND_BITS.get(dtype)
        self._source = torch.Generator().manual_seed(seed)
        self._signs = random.Random(seed)

    def compute(self, func: Operator, args: Any, kwargs: Any) -> Any:
        operands = self._operand_bits
        if operands and func.overloadpacket.__name__ in PRODUCTS:
            args = tree_map(lambda value: self._rounded_copy(value, operands), args)
        name = func.overloadpacket.__name__
        exact_args = args
        args = self._with_sum_errors(name, args) if self._sums and name in PRODUCTS | SUMS else args
        has_error = bool(self._tolerated) and name in TERM_COUNTS and not _asks_for_integers(kwargs)
        error = error_in_turn(TERM_COUNTS[name](*args), self._tolerated) if has_error else 0
        if error and name not in EXPONENTIALS:
            position = int("add" in name)  # the addend of a product comes first
            args = (*args[:position], self._perturb(args[position].clone(), error), *args[position + 1 :])
        result = super().compute(func, args, kwargs)
        if name == "native_batch_norm_backward" and args is not exact_args:
            result = _without_shared_errors(result, exact_args, args)
        if error:
            tree_map(lambda value: self._perturb(value, error), result)
        # Views contain rounded values already.
        if not getattr(func, "is_view", False):
            bits = min(self._bits, NARROW_BITS.get(self.narrow_dtype, self._bits))
            tree_map(lambda value: self._round(value, bits), result)
            if result is None:  # it changes its arguments, like an optimizer's kernel for all parameters
                tree_map(lambda value: self._round(value, bits), changed_by(func, args))
        return result

    @contextmanager
    def updating(self, tolerated: float) -> Iterator[None]:
        """Inside, an optimizer's step is computed in the storage format of the parameters.

        Steps of the Adam family are made slightly too long or too short. If the step is compiled or on a
        device, 1 − β₂ᵗ is computed in float32, with an initial error of u / (1 − β₂), half of which remains
        under the root. Draws are tolerated `tolerated` times, so the error is divided by that.
        """
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        rates: list[tuple[dict[str, Any], Any]] = []

        def begin(optimizer: Any, *_: Any) -> None:
            self._bits = self._stored
            for group in optimizer.param_groups:
                if BETAS in group and (remainder := 1.0 - float(group[BETAS][1])) > 0:
                    rates.append((group, group["lr"]))
                    relative_error = (
                        self._signs.choice((-1, 1)) * ACCUMULATOR_ROUNDOFF / (2 * remainder) / tolerated
                    )
                    group["lr"] = group["lr"] * (1.0 + relative_error)

        def end(*_: Any) -> None:
            self._bits = self._computed
            while rates:
                group, rate = rates.pop()
                group["lr"] = rate

        hooks = (register_optimizer_step_pre_hook(begin), register_optimizer_step_post_hook(end))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _with_sum_errors(self, name: str, args: Any) -> Any:
        """Perturb the largest argument as if each of its elements had an error during summation.

        If a norm or sum has the same number many times, as from the gradient of a mean, all these additions
        are rounded alike, so equal elements get the same error.
        """
        tensors = [
            argument
            for argument in args
            if isinstance(argument, torch.Tensor) and argument.dtype is torch.float64
        ]
        if not tensors:
            return args
        largest = max(tensors, key=torch.Tensor.numel)
        # Matrix products sum rows; convolutions and norms sum all axes but the channels.
        kept_size = largest.shape[1] if largest.dim() > 1 and name not in MATRICES else 1
        terms = largest.shape[-1] if name in MATRICES and largest.dim() else largest.numel() / kept_size
        noise = torch.randn(largest.shape, generator=self._source, dtype=torch.float64)
        if name in SUMS:
            values, inverse = largest.unique(return_inverse=True)
            noise = noise.flatten()[: len(values)][inverse] if len(values) < largest.numel() else noise
        perturbed = largest * (1 + noise * (math.sqrt(terms / 2) * ACCUMULATOR_ROUNDOFF))
        return tuple(perturbed if argument is largest else argument for argument in args)

    def _perturb(self, value: Any, error: float) -> Any:
        """Change each element by the relative error with random signs, in place."""
        if isinstance(value, torch.Tensor) and value.dtype in (torch.float64, torch.complex128):
            signs = torch.randint(0, 2, value.shape, generator=self._source, dtype=torch.float64)
            value.mul_(signs.mul_(2 * error).add_(1.0 - error))
        return value

    def _rounded_copy(self, value: Any, bits: int) -> Any:
        return self._round(value.clone(), bits) if isinstance(value, torch.Tensor) else value

    def _round(self, value: Any, bits: int) -> Any:
        """Round a float64 tensor in place: random low bits are added, then cleared."""
        if not isinstance(value, torch.Tensor) or value.dtype not in (torch.float64, torch.complex128):
            return value
        numbers = torch.view_as_real(value) if value.is_complex() else value
        if numbers.numel() == 0 or numbers.device.type != "cpu":
            return value
        step = 1 << (FLOAT64_BITS - bits)
        if self._nearest:
            noise = torch.full(numbers.shape, step // 2, dtype=torch.int64)
        else:
            noise = torch.randint(0, step, numbers.shape, generator=self._source, dtype=torch.int64)
        beyond = numbers.abs() > HUGE  # also infinities, whose bits must not change; NaN compares false
        unrounded = numbers[beyond] if bool(beyond.any()) else None
        bits_of = numbers.view(torch.int64)
        bits_of.add_(noise).bitwise_and_(-step)
        if unrounded is not None:
            numbers[beyond] = unrounded
        return value


def _without_shared_errors(result: Any, exact: Any, erring: Any) -> Any:
    """Result of a batch norm's backward with errors in a gradient's sums, except for equal elements.

    Equal elements, as in the gradient of a mean, nearly cancel when their mean is subtracted. If they had the
    same error as the mean, it would cancel, too.
    """
    (gradient, _, weight, _, _, _, rstd, is_training, *_), erring_gradient = exact, erring[0]
    if result[0] is None or not is_training:
        return result
    _, inverse, counts = gradient.unique(return_inverse=True, return_counts=True)
    is_repeated = (counts > 1)[inverse]
    channels = (1, -1, *[1] * (gradient.dim() - 2))
    scale = rstd.view(channels) * (1.0 if weight is None else weight.view(channels))
    return (result[0] - torch.where(is_repeated, (erring_gradient - gradient) * scale, 0.0), *result[1:])


class Plain(Widening):
    """Compute every operator by its ordinary kernel in the dtype, as torch does in eager mode.

    Tensors stay in float64 between operators, so a module that asks for a dtype takes the same branches as in
    the reference. Operators without a kernel for the dtype round their result to it.
    """

    def __init__(self, dtype: Dtype) -> None:
        super().__init__()
        self._dtype = PLAIN_DTYPES[dtype]
        self._product_dtype = torch.bfloat16 if dtype is Dtype.AMP_BF16 else self._dtype

    def compute(self, func: Operator, args: Any, kwargs: Any) -> Any:
        name = func.overloadpacket.__name__
        dtype = self.narrow_dtype or (self._product_dtype if name in PRODUCTS else self._dtype)
        if getattr(func, "is_view", False):
            return super().compute(func, args, kwargs)
        copies: dict[int, tuple[Any, Any]] = {}  # id of a narrow tensor → (it, its float64 original)

        def narrowed(value: Any) -> Any:
            if isinstance(value, torch.dtype):
                return dtype if value is torch.float64 else value
            if isinstance(value, torch.Tensor) and value.dtype is torch.float64:
                copy = value.to(dtype)
                copies[id(copy)] = copy, value
                return copy
            return value

        narrow_args, narrow_kwargs = tree_map(narrowed, (args, kwargs))
        try:
            result = super().compute(func, narrow_args, narrow_kwargs)
        except (NotImplementedError, RuntimeError):  # no kernel for the dtype
            result = super().compute(func, args, kwargs)
            return tree_map(lambda value: value.to(dtype) if _is_float64(value) else value, result)
        # Some operators change lists of tensors. Batch norms change their statistics without declaring it.
        statistics = narrow_args[3:5] if name in BATCH_NORMS else ()
        for changed in tree_leaves([*changed_by(func, narrow_args), *statistics]):
            if id(changed) in copies:
                copies[id(changed)][1].copy_(changed)
        return tree_map(lambda value: copies.get(id(value), (None, value))[1], result)


def _is_float64(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.float64


class Flipping(Widening):
    """Exact except for ReLUs and similar operators: the inputs nearest to zero change sign.

    Their gradients jump at zero. `rounding.Flipping` selects the inputs; `turned` counts them.
    """

    def __init__(self, nearest: Any) -> None:
        super().__init__()
        self._nearest = nearest
        self.turned = 0

    def compute(self, func: Operator, args: Any, kwargs: Any) -> Any:
        if func.overloadpacket.__name__ in KINKED:
            x = args[0] if func.overloadpacket.__name__.endswith("_") else args[0].clone()
            flat = x.reshape(-1)
            indices = torch.from_numpy(self._nearest.near_zero(flat.detach().numpy()))
            flat[indices] *= -1
            self.turned += len(indices)
            args = (x.copy_(flat.view(x.shape)), *args[1:])
        return super().compute(func, args, kwargs)


def changed_by(func: Operator, args: Any) -> list[Any]:
    """Arguments that an operator changes, according to its schema."""
    return [
        argument
        for argument, declared in zip(args, func._schema.arguments, strict=False)
        if declared.alias_info is not None and declared.alias_info.is_write
    ]


@contextmanager
def plain_operators() -> Iterator[None]:
    """Run attention and encoder layers as separate operators instead of one fused operator."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def computed_in(mode: Widening, step: Callable[[], Any]) -> Any:
    """Result of `step` under the mode."""
    with plain_operators(), mode:
        return step()
