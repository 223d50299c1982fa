"""Random numbers of inputs and weights, drawn by seed and name and rounded to the case's dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from zlib import crc32

from benchbench.arrays import AnyArray, Indices
from benchbench.model.case import Dtype

if TYPE_CHECKING:
    import numpy as np

    Standard = Callable[[tuple[int, int], tuple[int, ...], type[Any]], AnyArray]

SEED = 20_261_121  # of every input and weight, the same in all runs


class Draw:
    """Source of all inputs and weights: N(0, 1), seeded by name, rounded once to the case's dtype.

    Every framework and the float64 reference get the same numbers, so their results do not differ by rounded
    inputs. There are never zeros, ones or identities, since special values run faster on real hardware
    (baidu-research/DeepBench#104: about 15 %).
    """

    def __init__(
        self,
        dtype: Dtype,
        seed: int = SEED,
        standard: Standard | None = None,
        renewed: Callable[[str], int] = lambda _: 0,
    ) -> None:
        """`standard` draws the numbers, as `standard_normal` does.

        `renewed` returns a number that is added to the seed of an array, by its name.
        """
        self._dtype = dtype
        self._seed = seed
        self._standard = standard or standard_normal
        self._renewed = renewed

    def normal(self, name: str, *shape: int, scale: float = 1.0, mean: float = 0.0) -> AnyArray:
        """Array of this shape, N(mean, scale²), with values that the dtype can represent.

        It is float64 or float32.
        """
        import numpy as np

        real = np.float64 if self._dtype is Dtype.FLOAT64 else np.float32
        values = np.asarray(self._standard(self._key(name), shape, real))
        if scale != 1.0:
            values *= real(scale)
        if mean:
            values += real(mean)
        return rounded(values, self._dtype)

    def rounded(self, values: AnyArray) -> AnyArray:
        """Round given values to the dtype; returns float64 or float32."""
        import numpy as np

        real = np.float64 if self._dtype is Dtype.FLOAT64 else np.float32
        return rounded(values.astype(real), self._dtype)

    def labels(self, name: str, count: int, classes: int) -> Indices:
        """int64 class indices of shape (count,)."""
        return generator(self._key(name)).integers(0, classes, size=count)

    def integers(self, name: str, *shape: int, below: int) -> Indices:
        """int64 array of this shape, uniform in 0 … below − 1: tokens, positions or indices."""
        return generator(self._key(name)).integers(0, below, size=shape)

    def number(self, name: str) -> int:
        """Number of an array's values: 0 for the first inputs, others for other inputs."""
        return self._renewed(name)

    def _key(self, name: str) -> tuple[int, int]:
        return self._seed + self._renewed(name), crc32(name.encode())


def standard_normal(key: tuple[int, int], shape: tuple[int, ...], real: type[Any]) -> AnyArray:
    """N(0, 1) of this shape in float64 or float32, the same for the same key."""
    return generator(key).standard_normal(shape, dtype=real)


def generator(key: tuple[int, int]) -> np.random.Generator:
    """Random generator for a seed and a name."""
    import numpy as np

    return np.random.default_rng(key)


def rounded(values: AnyArray, dtype: Dtype) -> AnyArray:
    """Round float32 values to nearest even in `dtype`, stored as float32; return float64 unchanged."""
    import numpy as np

    if dtype is Dtype.FLOAT16:
        return values.astype(np.float16).astype(np.float32)
    if dtype is Dtype.BFLOAT16:  # the upper half of a float32
        bits = values.view(np.uint32)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        return np.asarray(bits.view(np.float32))
    if dtype is Dtype.FLOAT8:  # E4M3: three mantissa bits; multiples of 2⁻⁹ below 2⁻⁶
        _, exponents = np.frexp(values)
        spacing = np.ldexp(np.float32(1), np.maximum(exponents - 1, -6) - 3)
        return np.asarray(np.clip(np.rint(values / spacing) * spacing, -448, 448), np.float32)
    return values
