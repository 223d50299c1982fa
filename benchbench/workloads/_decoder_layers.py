"""Layers that only decoders have, as data: see `_layers.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from benchbench.workloads._weights import Weight

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from benchbench.workloads.base import Draw


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalAttention:
    """Attention of the last `rows` of `length` positions to all up to each: products alone, no weights."""

    rows: int
    length: int
    width: int  # of all heads together
    heads: int
    kv_heads: int
    beside: ClassVar[bool] = False
    roundings: ClassVar[int] = 3  # scores, their softmax, result

    @property
    def products(self) -> int:
        return self.width // self.heads + self.length

    def weights(self) -> dict[str, Weight]:
        return {}

    def flops(self, batch: int) -> int:
        """QKᵀ and PV, 2 · width each, of the pairs that the mask leaves."""
        pairs = self.rows * (2 * self.length - self.rows + 1) // 2
        return 4 * batch * pairs * self.width

    def elements(self, batch: int) -> int:
        shared = self.width * self.kv_heads // self.heads
        return 2 * batch * (self.rows * self.width + self.length * shared)


@dataclass(frozen=True, slots=True, kw_only=True)
class RmsNorm:
    """Root mean square normalisation, by a scale alone (Zhang & Sennrich 2019)."""

    name: str
    channels: int
    beside: ClassVar[bool] = False
    products: ClassVar[int] = 0
    roundings: ClassVar[int] = 1

    def weights(self) -> dict[str, Weight]:
        return {f"{self.name}.weight": Weight(shape=(self.channels,), mean=1.0, scale=0.1)}

    def flops(self, batch: int) -> int:
        return 0

    def elements(self, batch: int) -> int:
        """Nothing is counted: fused with what it follows at best."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedLogits:
    """The product with the table of tokens (Press & Wolf 2017), whose weights are the embedding's."""

    width: int
    vocabulary: int
    rows: int
    beside: ClassVar[bool] = False
    roundings: ClassVar[int] = 1

    @property
    def products(self) -> int:
        return self.width

    def weights(self) -> dict[str, Weight]:
        return {}

    def flops(self, batch: int) -> int:
        return 2 * batch * self.rows * self.width * self.vocabulary

    def elements(self, batch: int) -> int:
        return batch * self.rows * (self.width + self.vocabulary) + self.width * self.vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotary:
    """Tables of rotary positions: each pair of a head's halves turns by the position (Su et al. 2021)."""

    name: str
    length: int
    dim: int  # of a head
    base: float
    beside: ClassVar[bool] = False
    products: ClassVar[int] = 0
    roundings: ClassVar[int] = 1

    def weights(self) -> dict[str, Weight]:
        """Cosines and sines, (length, dim) each, computed in float64 once, as by PyTorch's users."""
        shape = self.length, self.dim
        return {
            f"{self.name}_{part}": RotaryTable(
                shape=shape, scale=0.0, is_learnt=False, base=self.base, part=part
            )
            for part in ("cos", "sin")
        }

    def flops(self, batch: int) -> int:
        return 0

    def elements(self, batch: int) -> int:
        """Nothing is counted: fused with the products at best."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryTable(Weight):
    """cos or sin of position · base^(−2i / dim), for pairs i of a head, and again for their other halves."""

    base: float
    part: str

    def draw(self, draw: Draw, name: str) -> NDArray[np.float32]:
        """Nothing is drawn; float32 angles would err by position · 2⁻²⁴."""
        import numpy as np

        length, dim = self.shape
        angles = np.outer(np.arange(length), self.base ** (-np.arange(0, dim, 2) / dim))
        return draw.rounded(getattr(np, self.part)(np.concatenate([angles, angles], axis=1)))
