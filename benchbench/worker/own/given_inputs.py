"""Inputs that the user has in a file of arrays, put in the places of a model's own: `--input file.npz`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import PurePath
from typing import Any

from benchbench.arrays import AnyArray
from benchbench.model.case import Scalar
from benchbench.model.own import ModelSpec
from benchbench.worker.own.source import BATCH, Loaded, ModelMistake, shuffled

DIGITS = 8  # of the digest
KINDS = {"f": "floats", "i": "integers", "u": "integers", "b": "truth values"}  # of elements, by NumPy's word
UNNAMED = re.compile(r"arr_(\d+)")  # what NumPy calls arrays that were given no name
WRITTEN = "numpy.savez('inputs.npz', tokens=tokens, mask=mask) names them; without names they go by place."


@cache
def arrays_in(file: str) -> dict[str, AnyArray]:
    """The arrays of a file by name; those without a name in their order. Raises ModelMistake."""
    import numpy as np

    name = PurePath(file).name
    try:
        with np.load(file) as stored:  # never pickled objects, which are code
            found = {each: np.asarray(stored[each]) for each in stored.files}
    except Exception as error:  # no file of NumPy's, or one with other things in it
        raise ModelMistake(f"{name} is no file of arrays: {error}.".replace("..", "."), WRITTEN) from error
    if not found:
        raise ModelMistake(f"{name} holds no array.", WRITTEN)
    for each, array in found.items():
        if array.dtype.kind not in KINDS:
            raise ModelMistake(f"{each} in {name} is of {array.dtype}.", "A model is given numbers only.")
    return dict(sorted(found.items(), key=lambda item: _number(item[0])))


def _number(name: str) -> int:
    place = UNNAMED.fullmatch(name)
    return int(place[1]) if place else 0


def digest(spec: ModelSpec) -> str:
    """What tells these inputs from others: of names, shapes, types and elements."""
    whole = sha256()
    for name, array in sorted(arrays_in(spec.input).items()):
        whole.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode() + array.tobytes())
    return whole.hexdigest()[:DIGITS]


def samples_in(spec: ModelSpec) -> int:
    """How many samples there are: as long as the first axis of most arrays is; 0 where none has one."""
    lengths = Counter(len(array) for array in arrays_in(spec.input).values() if array.ndim)
    return lengths.most_common(1)[0][0] if lengths else 0


def sized(spec: ModelSpec, loaded: Loaded) -> Loaded:
    """What a spec names, with the sizes that its file of inputs has: of these, only how many samples."""
    if not spec.input:
        return loaded
    has_batch = BATCH in loaded.sizes_of_inputs and samples_in(spec) > 0
    return replace(loaded, sizes_of_inputs={BATCH: samples_in(spec)} if has_batch else {})


def check_size(spec: ModelSpec, sizes: Mapping[str, Scalar]) -> None:
    """Raises ModelMistake where the file has fewer samples than are asked for."""
    batch = sizes.get(BATCH)
    if spec.input and type(batch) is int and batch > samples_in(spec) > 0:
        raise ModelMistake(
            f"{PurePath(spec.input).name} has {samples_in(spec)} samples: there is no batch={batch} of them.",
            f"-p batch={samples_in(spec)} is the largest.",
        )


def in_place_of(
    spec: ModelSpec, own: Mapping[str, AnyArray], parameters: Sequence[str], sizes: Mapping[str, Scalar]
) -> dict[str, AnyArray]:
    """The file's arrays by the names of the model's `own` inputs, in types as these have them.

    `parameters`: what the model calls its arguments, which may name inputs that are given by place. Of as
    many samples as `sizes` says: the first, or more by shuffling these. Raises ModelMistake.
    """
    given, file = _by_name(spec, own, parameters), PurePath(spec.input).name
    called = dict(zip(own, _called(own, parameters), strict=True))
    batch = sizes.get(BATCH)
    samples = {name: array for name, array in given.items() if own[name].shape[:1] == (batch,) and array.ndim}
    if batch is not None and not samples:
        raise ModelMistake(
            f"{file}: inputs(batch={batch}) gives nothing whose first axis is that long.",
            "Call that parameter another name than batch: then all of the file is one call.",
        )
    if len({len(array) for array in samples.values()}) > 1:
        counts = ", ".join(f"{called[name]} {len(array)}" for name, array in samples.items())
        raise ModelMistake(
            f"{file}: its arrays have different numbers of samples: {counts}.",
            "Give them the same first axis.",
        )
    found: dict[str, AnyArray] = {}
    for name, array in given.items():
        like, what = own[name], f"{called[name]} in {file}"
        if array.ndim != like.ndim:
            raise ModelMistake(
                f"{what} has the shape {array.shape}, and inputs() gives {like.shape}.",
                "It needs as many axes; their lengths may differ.",
            )
        taken = _of_size(array, int(batch)) if name in samples and batch is not None else array
        found[name] = _as_type(taken, like, what)
    return found


def alone(spec: ModelSpec, sizes: Mapping[str, Scalar]) -> Any:
    """The file's arrays as they are for a model that says nothing of its inputs.

    One array; a tuple of those without names; else a dictionary, to be passed by keyword.
    """
    import numpy as np

    batch, count = sizes.get(BATCH), samples_in(spec)
    arrays = {
        name: _of_size(array, int(batch)) if batch is not None and array.shape[:1] == (count,) else array
        for name, array in arrays_in(spec.input).items()
    }
    plain = {
        name: array.astype(np.float32) if array.dtype.kind == "f" else array for name, array in arrays.items()
    }
    if len(plain) == 1:
        return next(iter(plain.values()))
    return tuple(plain.values()) if all(map(UNNAMED.fullmatch, plain)) else plain


def _by_name(spec: ModelSpec, own: Mapping[str, AnyArray], parameters: Sequence[str]) -> dict[str, AnyArray]:
    """The file's arrays by the names of the inputs, in the order of these. Raises ModelMistake."""
    given, called = arrays_in(spec.input), list(parameters[: len(own)])
    if given.keys() == own.keys():
        return {name: given[name] for name in own}
    if len(given) == len(own) and (len(own) == 1 or all(map(UNNAMED.fullmatch, given))):
        return dict(zip(own, given.values(), strict=True))
    if given.keys() == {*called} and len(called) == len(own):
        return {name: given[parameter] for name, parameter in zip(own, called, strict=True)}
    wanted = ", ".join(_called(own, parameters))
    raise ModelMistake(
        f"{PurePath(spec.input).name} has {', '.join(given)}, and the model takes {wanted}.",
        WRITTEN,
    )


def _called(own: Mapping[str, AnyArray], parameters: Sequence[str]) -> list[str]:
    """The inputs as a user knows them: those that are given by place as the model calls its arguments."""
    by_place = all(name.isdecimal() or not name for name in own)
    known = by_place and len(parameters) >= len(own)
    return list(parameters[: len(own)]) if known else [name or "the input" for name in own]


def _of_size(array: AnyArray, batch: int) -> AnyArray:
    """The first samples; where more are needed, as to calibrate, the others are shuffled ones."""
    import numpy as np

    more = [shuffled(array, number) for number in range(1, -(-batch // max(1, len(array))))]
    found: AnyArray = np.concatenate([array, *more])[:batch] if more else array[:batch]
    return found


def _as_type(array: AnyArray, like: AnyArray, what: str) -> AnyArray:
    """The array in the type that another has. Raises ModelMistake for one of another kind."""
    import numpy as np

    of, wanted = KINDS[array.dtype.kind], KINDS.get(like.dtype.kind, str(like.dtype))
    if of != wanted:
        raise ModelMistake(
            f"{what} is of {array.dtype}, {of}, and the model takes {wanted}.",
            f"Save it as such: array.astype('{like.dtype}').",
        )
    found = array.astype(like.dtype)
    if wanted == "integers" and not np.array_equal(found, array):
        raise ModelMistake(
            f"{what} has integers that {like.dtype} has not.", "inputs() gives the type that it is given in."
        )
    return found
