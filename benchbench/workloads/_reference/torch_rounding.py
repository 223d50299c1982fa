"""A torch module in float64, whatever dtypes it asks for itself; and what a narrower dtype does to it.

`module.double()` alone is not float64: modules narrow what they compute, as by `.to(torch.float32)` before a
norm. So these modes see every operator, below autograd: `Widening` has it compute in float64, `Rounding`
also rounds each result at random, to one of the two neighbours that the dtype has (Connolly, Higham & Mary
2021, "Stochastic rounding and its probabilistic backward error analysis"). Needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from benchbench.model.case import Dtype

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
}
OF_FLOAT64, OF_TF32 = 53, 11
HUGE = 1e300  # a mask's value: no number that is rounded
# Of aten, by which tensor cores multiply.
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "addmv", "mv", "dot")
Operator = Any


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
        return func(*args, **kwargs)

    def _wide(self, value: Any) -> Any:
        if isinstance(value, torch.dtype) and value in WIDE:
            self.narrowed += 1
            return WIDE[value]
        return _widened(value)


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in WIDE:
        return value.to(WIDE[value.dtype])
    return value


class Rounding(Widening):
    """Has every operator's result rounded to a dtype at random; each seed draws otherwise."""

    def __init__(self, dtype: Dtype, seed: int) -> None:
        super().__init__()
        self._bits = BITS[dtype]
        self._cuts_operands = dtype is Dtype.TF32
        self._source = torch.Generator().manual_seed(seed)

    def computed(self, func: Operator, args: Any, kwargs: Any) -> Any:
        if self._cuts_operands and func.overloadpacket.__name__ in PRODUCTS:
            args = tree_map(lambda each: self._rounded_copy(each, OF_TF32), args)
        result = super().computed(func, args, kwargs)
        # What an operator only shows again is rounded already, and another rounding leaves it as it is.
        if not getattr(func, "is_view", False):
            tree_map(lambda each: self._round(each, self._bits), result)
        return result

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
        noise = torch.randint(0, step, numbers.shape, generator=self._source, dtype=torch.int64)
        beyond = numbers.abs() > HUGE  # infinities too, whose bits must stay; NaN compares false
        as_they_are = numbers[beyond] if bool(beyond.any()) else None
        bits_of = numbers.view(torch.int64)
        bits_of.add_(noise).bitwise_and_(-step)
        if as_they_are is not None:
            numbers[beyond] = as_they_are
        return value


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
