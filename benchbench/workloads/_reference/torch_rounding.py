"""A torch module in float64, whatever dtypes it asks for itself; and what a narrower dtype does to it.

`module.double()` alone is not float64: modules narrow what they compute, as by `.to(torch.float32)` before a
norm. So these modes see every operator, below autograd: `Widening` has it compute in float64, `Rounding`
also rounds each result at random, to one of the two neighbours that the dtype has (Connolly, Higham & Mary
2021, "Stochastic rounding and its probabilistic backward error analysis"). Needs torch.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from benchbench.model.case import Dtype
from benchbench.workloads._reference.rounding import HUGE, error_in_turn

WIDE = {
    **dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float64),
    **dict.fromkeys((torch.complex32, torch.complex64), torch.complex128),
}
BITS = {  # of the significand, the leading one included
    Dtype.FLOAT64: 24,  # rounded to float32, and the errors scaled
    Dtype.FLOAT32: 24,
    Dtype.TF32: 24,
    Dtype.FLOAT16: 11,
    Dtype.BFLOAT16: 8,
    Dtype.AMP_BF16: 8,  # what follows a product is computed in its dtype, but for some norms and sums
}
STORED_BITS = {Dtype.AMP_BF16: 24}  # of parameters and what an optimizer keeps, where it is other than that
OF_FLOAT64, OF_TF32 = 53, 11
# Of aten, by which tensor cores multiply.
GROUPED = "_grouped_mm"  # of aten: a product for each group of rows, as of a mixture of experts
MATRICES = frozenset(("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", GROUPED))
PRODUCTS = MATRICES | {"convolution", "convolution_backward"}
# And that add up many elements besides.
SUMS = frozenset(
    (
        *("sum", "mean", "var", "var_mean", "embedding_dense_backward"),
        *("native_batch_norm", "native_batch_norm_backward", "native_layer_norm_backward"),
        *("native_group_norm_backward", "_native_batch_norm_legit", "_batch_norm_with_update"),
    )
)
OF_ACCUMULATORS = 2.0**-24  # the unit roundoff of what sums are kept in
# Of aten, which add up exponentials: an error of the logarithms would be another one.
EXPONENTIALS = frozenset(("_softmax", "_log_softmax", "logsumexp"))
BETAS = "betas"  # of a group of parameters, as Adam and its kin name it
# Of aten, whose gradient jumps at zero.
KINKED = ("relu", "relu_", "leaky_relu", "leaky_relu_", "threshold", "threshold_", "abs")
Operator = Any


def _along(x: Any, dims: Any = None, *_: Any) -> float:
    """How many elements of a tensor lie along these axes, or along all."""
    if dims is None or dims == [] or not x.dim():
        return float(x.numel())
    return float(math.prod(x.shape[dim] for dim in (dims if isinstance(dims, list | tuple) else [dims])))


def _of_convolution(_: Any, weight: Any, *asked: Any) -> float:
    *_, transposed, _, groups = asked
    return float(weight.numel() / (weight.shape[1] * groups if transposed else weight.shape[0]))


def _of_batch_norm(x: Any, *asked: Any) -> float:
    is_training = asked[-3]
    return float(x.numel() / x.shape[1]) if is_training else 0.0


# Operators of aten that add up → of how many terms, by what they are given.
TERMS: dict[str, Callable[..., float]] = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot"), lambda left, _: left.shape[-1]),
    **dict.fromkeys((GROUPED, "grouped_mm_fallback"), lambda left, *_: left.shape[-1]),
    **dict.fromkeys(("addmm", "baddbmm", "addmv"), lambda _, left, *__: left.shape[-1]),
    "convolution": _of_convolution,
    **dict.fromkeys(("sum", "mean", "var", "var_mean", "std", "cumsum", *EXPONENTIALS), _along),
    "linalg_vector_norm": lambda x, _=2, dims=None, *__: _along(x, dims),
    **dict.fromkeys(("native_layer_norm", "_fused_rms_norm"), lambda _, shape, *__: math.prod(shape)),
    **dict.fromkeys(("native_batch_norm", "_native_batch_norm_legit"), _of_batch_norm),
    "native_group_norm": lambda x, _, __, count, ___, ____, groups, _____: x.numel() / (count * groups),
}


class Widening(TorchDispatchMode):  # type: ignore[misc]
    """Has every operator compute in float64. `narrowed`: how many asked for less."""

    def __init__(self) -> None:
        super().__init__()
        self.narrowed = 0

    def __torch_dispatch__(self, func: Operator, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(self._wide, (args, kwargs or {}))
        return tree_map(_widened, self.computed(func, args, kwargs))

    def computed(self, func: Operator, args: Any, kwargs: Any) -> Any:
        """The operator's result."""
        if func.overloadpacket.__name__ == GROUPED:  # which has no kernel for float64
            return grouped_product(*args, **kwargs)
        return func(*args, **kwargs)

    def _wide(self, value: Any) -> Any:
        if isinstance(value, torch.dtype) and value in WIDE:
            self.narrowed += 1
            return WIDE[value]
        return _widened(value)


def grouped_product(left: Any, right: Any, offs: Any = None, *_: Any, **__: Any) -> Any:
    """`torch.nn.functional.grouped_mm` by a product for each group, in the dtype of `left`.

    `offs`: where each group ends, along the axis that only matrices have: rows of `left` (m, k), columns of
    `right` (k, n), or of both what is added up. What has three axes has a matrix for each group.
    """
    if offs is None:
        return torch.bmm(left, right)
    ends = offs.tolist()
    groups = [slice(begin, end) for begin, end in zip((0, *ends), ends, strict=False)]
    if left.dim() == right.dim():
        return torch.stack([left[:, each] @ right[each] for each in groups])
    if left.dim() == 2:
        found = left.new_zeros(left.shape[0], right.shape[-1])
        for number, each in enumerate(groups):
            found[each] = left[each] @ right[number]
        return found
    found = right.new_zeros(left.shape[1], right.shape[-1])
    for number, each in enumerate(groups):
        found[:, each] = left[number] @ right[:, each]
    return found


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in WIDE:
        return value.to(WIDE[value.dtype])
    return value


def _counts(kwargs: Any) -> bool:
    """Whether integers are asked for: a count that is added up errs by nothing, else it would be cut."""
    asked = kwargs.get("dtype")
    return isinstance(asked, torch.dtype) and not (asked.is_floating_point or asked.is_complex)


class Rounding(Widening):
    """Has every operator's result rounded to a dtype at random; each seed draws otherwise.

    `sums`: what an operator adds up errs, too, as where it is added in turn in float32: n terms by √(n/2)·u
    each. On the way back sums are long, and may nearly cancel, as where a norm takes the mean away.
    `nearest`: rounded so, not at random, as engines do: what is far less than the spacing of a parameter
    never moves it.
    `tolerated`: what is added up forward errs, too, for draws that are tolerated so many times.
    """

    def __init__(
        self, dtype: Dtype, seed: int, *, sums: bool = False, nearest: bool = False, tolerated: float = 0.0
    ) -> None:
        super().__init__()
        self._sums, self._nearest, self._tolerated = sums, nearest, tolerated
        self._computed, self._stored = BITS[dtype], STORED_BITS.get(dtype, BITS[dtype])
        self._bits = self._computed
        self._operand_bits = {Dtype.TF32: OF_TF32, Dtype.AMP_BF16: BITS[Dtype.BFLOAT16]}.get(dtype)
        self._source = torch.Generator().manual_seed(seed)
        self._signs = random.Random(seed)

    def computed(self, func: Operator, args: Any, kwargs: Any) -> Any:
        operands = self._operand_bits
        if operands and func.overloadpacket.__name__ in PRODUCTS:
            args = tree_map(lambda each: self._rounded_copy(each, operands), args)
        name = func.overloadpacket.__name__
        given = args
        args = self._summed(name, args) if self._sums and name in PRODUCTS | SUMS else args
        errs = bool(self._tolerated) and name in TERMS and not _counts(kwargs)
        error = error_in_turn(TERMS[name](*args), self._tolerated) if errs else 0
        if error and name not in EXPONENTIALS:
            place = int("add" in name)  # what is added to a product comes first
            args = (*args[:place], self._moved(args[place].clone(), error), *args[place + 1 :])
        result = super().computed(func, args, kwargs)
        if name == "native_batch_norm_backward" and args is not given:
            result = _but_for_elements(result, given, args)
        if error:
            tree_map(lambda each: self._moved(each, error), result)
        # What an operator only shows again is rounded already, and another rounding leaves it as it is.
        if not getattr(func, "is_view", False):
            tree_map(lambda each: self._round(each, self._bits), result)
            if result is None:  # it changes what it is given, as an optimizer's kernel for all parameters
                tree_map(lambda each: self._round(each, self._bits), changed_by(func, args))
        return result

    @contextmanager
    def updating(self, tolerated: float) -> Iterator[None]:
        """Within, each optimizer's step is computed in what parameters are stored in.

        And that of the Adam family is a little too long or too short: where its step is compiled or on a
        device, 1 − β₂ᵗ is computed in float32, whose error is u / (1 − β₂) at first, and half of it under the
        root. An error as large is tolerated, since draws are `tolerated` times.
        """
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        rates: list[tuple[dict[str, Any], Any]] = []

        def begin(optimizer: Any, *_: Any) -> None:
            self._bits = self._stored
            for group in optimizer.param_groups:
                if BETAS in group and (rest := 1.0 - float(group[BETAS][1])) > 0:
                    rates.append((group, group["lr"]))
                    moved = self._signs.choice((-1, 1)) * OF_ACCUMULATORS / (2 * rest) / tolerated
                    group["lr"] = group["lr"] * (1.0 + moved)

        def end(*_: Any) -> None:
            self._bits = self._computed
            while rates:
                group, rate = rates.pop()
                group["lr"] = rate

        hooks = (register_optimizer_step_pre_hook(begin), register_optimizer_step_post_hook(end))
        try:
            yield
        finally:
            for each in hooks:
                each.remove()

    def _summed(self, name: str, args: Any) -> Any:
        """The arguments, the largest of them as if each of its elements erred while it was added.

        Where a norm or a sum gets the same number again and again, as from the gradient of a mean, each of
        these additions is rounded alike: they all err as one.
        """
        tensors = [each for each in args if isinstance(each, torch.Tensor) and each.dtype is torch.float64]
        if not tensors:
            return args
        largest = max(tensors, key=torch.Tensor.numel)
        # Of matrices rows are added up; of what convolutions and norms get, all but the channels.
        apart = largest.shape[1] if largest.dim() > 1 and name not in MATRICES else 1
        terms = largest.shape[-1] if name in MATRICES and largest.dim() else largest.numel() / apart
        noise = torch.randn(largest.shape, generator=self._source, dtype=torch.float64)
        if name in SUMS:
            values, places = largest.unique(return_inverse=True)
            noise = noise.flatten()[: len(values)][places] if len(values) < largest.numel() else noise
        erring = largest * (1 + noise * (math.sqrt(terms / 2) * OF_ACCUMULATORS))
        return tuple(erring if each is largest else each for each in args)

    def _moved(self, value: Any, error: float) -> Any:
        """Have each element of a tensor be so much of itself larger, or smaller."""
        if isinstance(value, torch.Tensor) and value.dtype in (torch.float64, torch.complex128):
            signs = torch.randint(0, 2, value.shape, generator=self._source, dtype=torch.float64)
            value.mul_(signs.mul_(2 * error).add_(1.0 - error))
        return value

    def _rounded_copy(self, value: Any, bits: int) -> Any:
        return self._round(value.clone(), bits) if isinstance(value, torch.Tensor) else value

    def _round(self, value: Any, bits: int) -> Any:
        """Round a float64 tensor in place: random low bits are added to it, then cut."""
        if not isinstance(value, torch.Tensor) or value.dtype not in (torch.float64, torch.complex128):
            return value
        numbers = torch.view_as_real(value) if value.is_complex() else value
        if numbers.numel() == 0 or numbers.device.type != "cpu":
            return value
        step = 1 << (OF_FLOAT64 - bits)
        if self._nearest:
            noise = torch.full(numbers.shape, step // 2, dtype=torch.int64)
        else:
            noise = torch.randint(0, step, numbers.shape, generator=self._source, dtype=torch.int64)
        beyond = numbers.abs() > HUGE  # infinities too, whose bits must stay; NaN compares false
        as_they_are = numbers[beyond] if bool(beyond.any()) else None
        bits_of = numbers.view(torch.int64)
        bits_of.add_(noise).bitwise_and_(-step)
        if as_they_are is not None:
            numbers[beyond] = as_they_are
        return value


def _but_for_elements(result: Any, exact: Any, erring: Any) -> Any:
    """What a batch norm's backward gives where the sums of a gradient err, but not its equal elements.

    Of equal elements, as of the gradient of a mean, nearly nothing is left when their mean is taken away.
    Had these erred as the mean does, the error would be taken away with them.
    """
    (gradient, _, weight, _, _, _, rstd, trains, *_), moved = exact, erring[0]
    if result[0] is None or not trains:
        return result
    _, places, counts = gradient.unique(return_inverse=True, return_counts=True)
    alike = (counts > 1)[places]
    channels = (1, -1, *[1] * (gradient.dim() - 2))
    scale = rstd.view(channels) * (1.0 if weight is None else weight.view(channels))
    return (result[0] - torch.where(alike, (moved - gradient) * scale, 0.0), *result[1:])


class Flipping(Widening):
    """Exact but for ReLUs and what resembles them: what lies nearest to zero is on the other side.

    `turned`: how many inputs. Their gradient jumps there; `rounding.Flipping` says which these are.
    """

    def __init__(self, nearest: Any) -> None:
        super().__init__()
        self._nearest = nearest
        self.turned = 0

    def computed(self, func: Operator, args: Any, kwargs: Any) -> Any:
        if func.overloadpacket.__name__ in KINKED:
            x = args[0] if func.overloadpacket.__name__.endswith("_") else args[0].clone()
            flat = x.reshape(-1)
            places = torch.from_numpy(self._nearest.near_zero(flat.detach().numpy()))
            flat[places] *= -1
            self.turned += len(places)
            args = (x.copy_(flat.view(x.shape)), *args[1:])
        return super().computed(func, args, kwargs)


def changed_by(func: Operator, args: Any) -> list[Any]:
    """The arguments that an operator changes, as its schema says."""
    return [
        given
        for given, declared in zip(args, func._schema.arguments, strict=False)
        if declared.alias_info is not None and declared.alias_info.is_write
    ]


@contextmanager
def plain_operators() -> Iterator[None]:
    """Attention and encoder layers as the operators that they are made of, not as one fused operator."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def computed_in(mode: Widening, step: Callable[[], Any]) -> Any:
    """What `step` gives under the mode."""
    with plain_operators(), mode:
        return step()
