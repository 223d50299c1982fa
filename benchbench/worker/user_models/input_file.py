"""Inputs from the user's file of arrays (`--input file.npz`), in place of the model's own inputs."""

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
from benchbench.model.user_model import ModelSpec
from benchbench.worker.user_models.source import BATCH, LoadedModel, ModelMistake, shuffled

DIGEST_DIGITS = 8
KINDS = {"f": "floats", "i": "integers", "u": "integers", "b": "booleans"}  # by NumPy's dtype.kind
UNNAMED = re.compile(r"arr_(\d+)")  # NumPy's name for arrays saved without one
SAVING_HINT = (
    "numpy.savez('inputs.npz', tokens=tokens, mask=mask) names them; unnamed arrays are passed in order."
)


@cache
def read_arrays(file: str) -> dict[str, AnyArray]:
    """Arrays of a file by name; unnamed ones in order. Raises ModelMistake."""
    import numpy as np

    file_name = PurePath(file).name
    try:
        with np.load(file) as stored:  # refuses pickled objects, which could execute code
            arrays = {name: np.asarray(stored[name]) for name in stored.files}
    except Exception as error:  # not a NumPy file, or one with pickled objects
        message = f"{file_name} is not a file of arrays: {error}.".replace("..", ".")
        raise ModelMistake(message, SAVING_HINT) from error
    if not arrays:
        raise ModelMistake(f"{file_name} contains no array.", SAVING_HINT)
    for name, array in arrays.items():
        if array.dtype.kind not in KINDS:
            raise ModelMistake(
                f"{name} in {file_name} has dtype {array.dtype}.", "Model inputs must be numbers."
            )
    return dict(sorted(arrays.items(), key=lambda item: _order(item[0])))


def _order(name: str) -> int:
    match = UNNAMED.fullmatch(name)
    return int(match[1]) if match else 0


def digest(spec: ModelSpec) -> str:
    """Digest of the names, shapes, dtypes and elements of the inputs."""
    checksum = sha256()
    for name, array in sorted(read_arrays(spec.input).items()):
        checksum.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode() + array.tobytes())
    return checksum.hexdigest()[:DIGEST_DIGITS]


def sample_count(spec: ModelSpec) -> int:
    """Number of samples: the most common length of the first axis; 0 if all arrays are scalars."""
    lengths = Counter(len(array) for array in read_arrays(spec.input).values() if array.ndim)
    return lengths.most_common(1)[0][0] if lengths else 0


def with_file_sizes(spec: ModelSpec, loaded: LoadedModel) -> LoadedModel:
    """Return a model whose only input size is the batch, with the file's number of samples as default."""
    if not spec.input:
        return loaded
    has_batch = BATCH in loaded.input_sizes and sample_count(spec) > 0
    return replace(loaded, input_sizes={BATCH: sample_count(spec)} if has_batch else {})


def check_size(spec: ModelSpec, sizes: Mapping[str, Scalar]) -> None:
    """Raise ModelMistake if the file has fewer samples than the batch."""
    batch = sizes.get(BATCH)
    if spec.input and type(batch) is int and batch > sample_count(spec) > 0:
        raise ModelMistake(
            f"{PurePath(spec.input).name} has {sample_count(spec)} samples, fewer than batch={batch}.",
            f"Use -p batch={sample_count(spec)} or less.",
        )


def arrays_for(
    spec: ModelSpec,
    model_inputs: Mapping[str, AnyArray],
    parameters: Sequence[str],
    sizes: Mapping[str, Scalar],
) -> dict[str, AnyArray]:
    """Return the file's arrays by the names of the model's inputs, in the dtypes of these.

    If `sizes` has a batch, arrays of samples are cut to it, or extended by shuffled samples. The file may use
    the names of the model's arguments (`parameters`) for inputs that are passed by position. Raises
    ModelMistake if names, numbers of axes, dtypes or numbers of samples do not match.
    """
    file_arrays, file = _by_name(spec, model_inputs, parameters), PurePath(spec.input).name
    display_names = dict(zip(model_inputs, _display_names(model_inputs, parameters), strict=True))
    batch = sizes.get(BATCH)
    samples = {
        name: array
        for name, array in file_arrays.items()
        if model_inputs[name].shape[:1] == (batch,) and array.ndim
    }
    if batch is not None and not samples:
        raise ModelMistake(
            f"{file}: inputs(batch={batch}) returns no array with a first axis of length {batch}.",
            "Rename the parameter batch of inputs(): then the whole file is passed in one call.",
        )
    if len({len(array) for array in samples.values()}) > 1:
        counts = ", ".join(f"{display_names[name]} {len(array)}" for name, array in samples.items())
        raise ModelMistake(
            f"{file}: its arrays have different numbers of samples: {counts}.",
            "Give them the same first axis.",
        )
    arrays: dict[str, AnyArray] = {}
    for name, array in file_arrays.items():
        model_input, description = model_inputs[name], f"{display_names[name]} in {file}"
        if array.ndim != model_input.ndim:
            raise ModelMistake(
                f"{description} has the shape {array.shape}, but inputs() returns {model_input.shape}.",
                "The numbers of axes must be equal; their lengths may differ.",
            )
        resized = _resize(array, int(batch)) if name in samples and batch is not None else array
        arrays[name] = _convert(resized, model_input, description)
    return arrays


def unmatched_arrays(spec: ModelSpec, sizes: Mapping[str, Scalar]) -> Any:
    """Arguments made of the file's arrays, for a model that does not describe its inputs.

    Returns the array if there is only one, a tuple if they are unnamed, else a dictionary of keyword
    arguments. Floats are converted to float32.
    """
    import numpy as np

    batch, count = sizes.get(BATCH), sample_count(spec)
    arrays = {
        name: _resize(array, int(batch)) if batch is not None and array.shape[:1] == (count,) else array
        for name, array in read_arrays(spec.input).items()
    }
    converted = {
        name: array.astype(np.float32) if array.dtype.kind == "f" else array for name, array in arrays.items()
    }
    if len(converted) == 1:
        return next(iter(converted.values()))
    return tuple(converted.values()) if all(map(UNNAMED.fullmatch, converted)) else converted


def _by_name(
    spec: ModelSpec, model_inputs: Mapping[str, AnyArray], parameters: Sequence[str]
) -> dict[str, AnyArray]:
    """The file's arrays by the names of the inputs, in the order of the inputs. Raises ModelMistake."""
    file_arrays, argument_names = read_arrays(spec.input), list(parameters[: len(model_inputs)])
    if file_arrays.keys() == model_inputs.keys():
        return {name: file_arrays[name] for name in model_inputs}
    if len(file_arrays) == len(model_inputs) and (
        len(model_inputs) == 1 or all(map(UNNAMED.fullmatch, file_arrays))
    ):
        return dict(zip(model_inputs, file_arrays.values(), strict=True))
    if file_arrays.keys() == {*argument_names} and len(argument_names) == len(model_inputs):
        return {
            name: file_arrays[parameter] for name, parameter in zip(model_inputs, argument_names, strict=True)
        }
    expected = ", ".join(_display_names(model_inputs, parameters))
    raise ModelMistake(
        f"{PurePath(spec.input).name} has {', '.join(file_arrays)}, but the model takes {expected}.",
        SAVING_HINT,
    )


def _display_names(model_inputs: Mapping[str, AnyArray], parameters: Sequence[str]) -> list[str]:
    """Names of the inputs for messages: argument names for inputs that are passed by position."""
    are_positional = all(name.isdecimal() or not name for name in model_inputs)
    if are_positional and len(parameters) >= len(model_inputs):
        return list(parameters[: len(model_inputs)])
    return [name or "the input" for name in model_inputs]


def _resize(array: AnyArray, batch: int) -> AnyArray:
    """Return the first `batch` samples. If there are too few (as for calibration), add shuffled copies."""
    import numpy as np

    extra = [shuffled(array, number) for number in range(1, -(-batch // max(1, len(array))))]
    samples: AnyArray = np.concatenate([array, *extra])[:batch] if extra else array[:batch]
    return samples


def _convert(array: AnyArray, like: AnyArray, description: str) -> AnyArray:
    """Return the array in the dtype of `like`. Raises ModelMistake if their kinds differ."""
    import numpy as np

    kind, expected_kind = KINDS[array.dtype.kind], KINDS.get(like.dtype.kind, str(like.dtype))
    if kind != expected_kind:
        raise ModelMistake(
            f"{description} contains {kind} ({array.dtype}), but the model takes {expected_kind}.",
            f"Save it as array.astype('{like.dtype}').",
        )
    converted = array.astype(like.dtype)
    if expected_kind == "integers" and not np.array_equal(converted, array):
        raise ModelMistake(
            f"{description} has integers outside the range of {like.dtype}.",
            "Return a wider dtype from inputs().",
        )
    return converted
