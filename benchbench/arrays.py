"""Types of arrays, by what they hold. Modules that compute import NumPy themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    AnyArray = NDArray[Any]
    Booleans = NDArray[np.bool_]
    Array = NDArray[np.generic]  # of any dtype
    Floats = NDArray[np.float64]
    Indices = NDArray[np.int64]
else:  # names in annotations, which are not evaluated
    AnyArray = Array = Booleans = Floats = Indices = Any
