"""What recurrent layers share: sizes, counted cost, inputs and weights; a layer is a file of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import TYPE_CHECKING, ClassVar, Self

from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads.base import Operation, reference_of_samples

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from benchbench.workloads.base import Arrays, Draw

# Ours → PyTorch's, whose second bias is 0.
TORCH_NAMES = {"weight_ih": "weight_ih_l0", "weight_hh": "weight_hh_l0", "bias": "bias_ih_l0"}


@dataclass(frozen=True)
class Recurrent(Operation):
    """One layer over whole sequences, from a state of zeros; one bias; batch first."""

    length: int = 100
    batch: int = 64
    inputs: int = 512
    hidden: int = 256

    gates: ClassVar[int]  # each has rows in the weights
    multiplications_saved = 1.0
    draws_tolerated = 4.0

    def cost(self, dtype: Dtype) -> Cost:
        """2·G·T·N·H·(I + H) FLOPs of G gates; input, weights and result move once; an item is a sequence."""
        moved = self.length * self.batch * (self.inputs + self.hidden)
        weights = self.gates * self.hidden * (self.inputs + self.hidden + 1)
        return Cost(
            flops=2 * self.gates * self.length * self.batch * self.hidden * (self.inputs + self.hidden),
            bytes=(moved + weights) * dtype.itemsize,
            items=self.batch,
            item="sequence",
        )

    @property
    def output_shape(self) -> tuple[int, int, int]:
        """Batch, steps, hidden units."""
        return self.batch, self.length, self.hidden

    def tiny(self) -> Self:
        """Odd sizes, none equal."""
        return replace(self, length=7, batch=3, inputs=11, hidden=5)

    def rounding_size(self) -> Self:
        """One sequence, of steps enough: each forgets about half of what was before."""
        usual = {"length": 32, "batch": 1, "inputs": 512, "hidden": 256}
        return replace(self, **{name: min(getattr(self, name), size) for name, size in usual.items()})

    def arrays(self, draw: Draw) -> dict[str, NDArray[np.generic]]:
        """x, and the weights as in PyTorch, N(0, 1/3H): the variance that PyTorch draws them with."""
        rows, scale = self.gates * self.hidden, 1 / sqrt(3 * self.hidden)
        return {
            "x": draw.normal("x", self.batch, self.length, self.inputs),
            "weight_ih": draw.normal("weight_ih", rows, self.inputs, scale=scale),
            "weight_hh": draw.normal("weight_hh", rows, self.hidden, scale=scale),
            "bias": draw.normal("bias", rows, scale=scale),
        }

    def is_input(self, name: str) -> bool:
        """The weights belong to the layer."""
        return name == "x"

    def sample(self, source: np.random.Generator, count: int) -> NDArray[np.int64]:
        """Of one sequence: they do not meet."""
        index = super().sample(source, count)
        index[:, 0] = index[0, 0]
        return index

    def reference(self, arrays: Arrays, index: NDArray[np.int64]) -> NDArray[np.float64]:
        """Of the sequences that are asked for."""
        return reference_of_samples(self, arrays, index, ["x"])
