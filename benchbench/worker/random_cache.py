"""Cache of random numbers and results in the run's folder, for later processes of the run.

Reading ResNet-50's weights takes a tenth of the 0.3 s that drawing them takes. Targets with different NumPy
versions also get bit-identical numbers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from benchbench.arrays import AnyArray
from benchbench.registry import DRAWN
from benchbench.workloads.draw import standard_normal

PREFIX = "array:"  # of names in an .npz file, since np.savez has a parameter `file`
MAX_SIZE = 2**22  # elements of a cached array: enough for weights of layers, not for batches of images


def cached_normal(key: tuple[int, int], shape: tuple[int, ...], real: type[Any]) -> AnyArray:
    """`standard_normal`, read from the run's folder if it is there."""
    import numpy as np

    folder = os.environ.get(DRAWN)
    if not folder or prod(shape) > MAX_SIZE:
        return standard_normal(key, shape, real)
    name = "-".join(map(str, (*key, "x".join(map(str, shape)), real.__name__)))
    path = Path(folder) / f"{name}.npy"
    with suppress(OSError, ValueError, EOFError):
        cached: AnyArray = np.load(path)
        return cached
    values = standard_normal(key, shape, real)
    _write(path, lambda file: np.save(file, values))
    return values


def cached_result(name: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Result of `compute()` as JSON values, cached in the run's folder under this name."""
    folder = os.environ.get(DRAWN)
    if not folder:
        return compute()
    path = Path(folder) / f"{sha256(name.encode()).hexdigest()}.json"
    with suppress(OSError, ValueError):
        cached: dict[str, Any] = json.loads(path.read_bytes())
        return cached
    text = json.dumps(compute())
    _write(path, lambda file: file.write(text.encode()))
    computed: dict[str, Any] = json.loads(text)  # as later readers get it: tuples become lists
    return computed


def cached_arrays(name: str, compute: Callable[[], dict[str, AnyArray]]) -> dict[str, AnyArray]:
    """Result of `compute()` as arrays by name, cached in the run's folder under this name.

    Processes that compute at the same time all return the arrays that were stored first, since frameworks may
    draw different numbers.
    """
    import numpy as np

    folder = os.environ.get(DRAWN)
    if not folder:
        return compute()
    path = Path(folder) / f"{sha256(name.encode()).hexdigest()}.npz"

    def read_cached() -> dict[str, AnyArray] | None:
        with suppress(OSError, ValueError, EOFError), np.load(path) as file:
            return {array_name.removeprefix(PREFIX): file[array_name] for array_name in file.files}
        return None

    if (cached := read_cached()) is not None:
        return cached
    is_damaged = os.path.lexists(path)
    arrays = compute()
    prefixed: dict[str, Any] = {f"{PREFIX}{array_name}": array for array_name, array in arrays.items()}
    _write(path, lambda file: np.savez(file, **prefixed), is_first=not is_damaged)
    cached = read_cached()
    return arrays if cached is None else cached


def _write(path: Path, write: Callable[[BinaryIO], object], *, is_first: bool = False) -> None:
    """Write the file atomically. If the disk is full, nothing is written and later processes compute again.

    With `is_first`, a file that another process wrote meanwhile is kept.
    """
    part = path.with_suffix(f".{os.getpid()}")
    with suppress(OSError), part.open("wb") as file:
        write(file)
        file.flush()
        if not is_first:
            part.replace(path)
            return
        with suppress(FileExistsError):
            os.link(part, path)
        part.unlink()
