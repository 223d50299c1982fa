"""Random numbers and results of one run, kept in its folder so that later processes read them.

ResNet-50's weights take 0.3 s to draw and a tenth of that to read. Targets whose NumPy differs also get the
same numbers to the bit.
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

NAMED = "array:"  # before a name in a file of arrays: `file` is an argument of NumPy's own
MOST = 2**22  # numbers of an array that is kept: weights of layers, not batches of images


def cached_normal(key: tuple[int, int], shape: tuple[int, ...], real: type[Any]) -> AnyArray:
    """`standard_normal`, from the run's folder where it is there."""
    import numpy as np

    folder = os.environ.get(DRAWN)
    if not folder or prod(shape) > MOST:
        return standard_normal(key, shape, real)
    name = "-".join(map(str, (*key, "x".join(map(str, shape)), real.__name__)))
    path = Path(folder) / f"{name}.npy"
    with suppress(OSError, ValueError, EOFError):
        stored: AnyArray = np.load(path)
        return stored
    values = standard_normal(key, shape, real)
    _keep(path, lambda file: np.save(file, values))
    return values


def cached_result(name: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """`compute()`, of values that JSON has, from the run's folder where it is there under this name."""
    folder = os.environ.get(DRAWN)
    if not folder:
        return compute()
    path = Path(folder) / f"{sha256(name.encode()).hexdigest()}.json"
    with suppress(OSError, ValueError):
        stored: dict[str, Any] = json.loads(path.read_bytes())
        return stored
    text = json.dumps(compute())
    _keep(path, lambda file: file.write(text.encode()))
    computed: dict[str, Any] = json.loads(text)  # as the next reader gets it: lists, no tuples
    return computed


def cached_arrays(name: str, compute: Callable[[], dict[str, AnyArray]]) -> dict[str, AnyArray]:
    """`compute()`, arrays by name, from the run's folder where they are there under this name.

    Of processes that compute at the same time, all get what the first one kept: frameworks may draw
    differently.
    """
    import numpy as np

    folder = os.environ.get(DRAWN)
    if not folder:
        return compute()
    path = Path(folder) / f"{sha256(name.encode()).hexdigest()}.npz"

    def kept() -> dict[str, AnyArray] | None:
        with suppress(OSError, ValueError, EOFError), np.load(path) as stored:
            return {each.removeprefix(NAMED): stored[each] for each in stored.files}
        return None

    if (found := kept()) is not None:
        return found
    is_damaged = os.path.lexists(path)
    arrays = compute()
    named: dict[str, Any] = {f"{NAMED}{each}": array for each, array in arrays.items()}
    _keep(path, lambda file: np.savez(file, **named), is_first=not is_damaged)
    found = kept()
    return arrays if found is None else found


def _keep(path: Path, write: Callable[[BinaryIO], object], *, is_first: bool = False) -> None:
    """Write the file whole or not at all. On a full disk the next process computes again, no more.

    `is_first`: unless another process has written it meanwhile.
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
