"""A user's Keras 3 model: found where a spec says, built in a dtype, given inputs; its weights by name.

Keras's backend is the worker's framework: the parent names it in KERAS_BACKEND before anything is imported.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from benchbench.arrays import AnyArray
from benchbench.model.case import Scalar
from benchbench.model.own import ModelSpec
from benchbench.worker.own import given_inputs, torch_module
from benchbench.worker.own.source import (
    Loaded,
    ModelMistake,
    Sought,
    imported,
    in_folder,
    other_than,
    parameters_of,
    seed_everything,
    sizes_of,
)
from benchbench.workloads.base import OUTPUT

BATCH_OF_SPEC: Mapping[str, Scalar] = {"batch": 1}  # the size of inputs that the model's own spec tells
INPUTS = (
    "Add a function that makes the model's inputs, whose parameters are its sizes:\n"
    "def inputs(batch=1):\n"
    "    return numpy.random.rand(batch, 28, 28, 1)"
)
FLOAT32, FLOAT64 = "float32", "float64"
NARROW = ("float16", "bfloat16", FLOAT32)
CONTEXT = ("self", "training", "mask")  # parameters of `call` that are no inputs


@contextmanager
def layers_in(dtype: str, *, widens: bool = False) -> Iterator[None]:
    """Layers that are made meanwhile have this dtype, unless they ask for another.

    `widens`: whatever they ask for, and whatever is cast meanwhile. Keras has no word for that, so it is told
    another meaning of the dtypes' names.
    """
    import keras
    from keras.src.backend.common import dtypes

    policy, floats = keras.config.dtype_policy(), keras.config.floatx()
    meanings = dict(dtypes.PYTHON_DTYPES_MAP)
    parse = keras.DTypePolicy._parse_name
    if widens:
        keras.config.set_floatx(dtype)
        dtypes.PYTHON_DTYPES_MAP.update(dict.fromkeys((*NARROW, float), dtype))
        keras.DTypePolicy._parse_name = lambda *_: (dtype, dtype)
    keras.config.set_dtype_policy(dtype)
    try:
        with _double_precision(widens=widens):
            yield
    finally:
        keras.DTypePolicy._parse_name = parse
        dtypes.PYTHON_DTYPES_MAP.clear()
        dtypes.PYTHON_DTYPES_MAP.update(meanings)
        keras.config.set_floatx(floats)
        keras.config.set_dtype_policy(policy)


@contextmanager
def _double_precision(*, widens: bool) -> Iterator[None]:
    """JAX has float64 only where it is told so."""
    import keras

    if not widens or keras.config.backend() != "jax":
        yield
        return
    import jax

    with jax.enable_x64(True):
        yield


def use_cpu() -> None:
    """Have this process compute on the CPU alone: it describes, or computes a reference."""
    import keras

    backend = keras.config.backend()
    if backend == "jax":
        import jax

        jax.config.update("jax_platforms", "cpu")
    elif backend == "tensorflow":
        import tensorflow as tf

        tf.config.set_visible_devices([], "GPU")
    else:
        use_device("cpu")


def use_device(name: str) -> None:
    """Have Keras on torch put what it makes on this device, from here on."""
    import keras

    keras.device(name).__enter__()  # for as long as the process lasts


@cache
def load(spec: ModelSpec, dtype: str = FLOAT32) -> Loaded:
    """Import what the spec names, once in a process and dtype. Raises ModelMistake, and what the file raises.

    `dtype`: the file may make layers while it is imported, so it is executed again for another.
    """
    import keras

    with in_folder(spec):
        if spec.is_saved:
            saved = Loaded(spec.attribute, True, lambda: _saved(spec), {}, None, BATCH_OF_SPEC)
            return given_inputs.sized(spec, saved)
        module, sought = imported(spec, variant=dtype), Sought((keras.Model,), "Keras model")
        name, found = sought.named_in(module, spec)
        own = getattr(module, "inputs", None)
        inputs = own if callable(own) and not isinstance(own, keras.KerasTensor) else None
        sizes_of_inputs = sizes_of(inputs, "inputs") if inputs else BATCH_OF_SPEC
        if not callable(found):
            raise ModelMistake(
                f"{name} is neither a Keras model nor makes one.", "Name a class or a function."
            )
        is_made = isinstance(found, keras.Model)
        make, sizes = (lambda: found, {}) if is_made else (found, sizes_of(found, name))
        is_default = name == sought.default_in(module)
        return given_inputs.sized(spec, Loaded(name, is_default, make, sizes, inputs, sizes_of_inputs))


SAFE_KERAS = (3, 11)  # its safe mode has no known hole (CVE-2025-1550, CVE-2025-8747, CVE-2025-9906)


def _saved(spec: ModelSpec) -> Any:
    """The model in a file, whose layers are Keras's own: safe mode refuses functions of Python."""
    import keras

    if tuple(map(int, keras.__version__.split(".")[:2])) < SAFE_KERAS:
        raise ModelMistake(
            f"Keras {keras.__version__} can execute code of a file that it loads.",
            "Keras 3.11 and later cannot: pip install --upgrade keras",
        )
    try:
        return keras.saving.load_model(spec.file, compile=False, safe_mode=True)
    except ValueError as error:
        if "safe_mode" not in str(error):
            raise
        raise ModelMistake(
            f"{spec.text} is refused: a layer of it is a function of Python, which would be executed.",
            "Build the model in a Python file, and name that.",
        ) from error


def built(
    spec: ModelSpec,
    params: Mapping[str, Scalar],
    dtype: str = FLOAT32,
    seed: int = 0,
    *,
    widens: bool = False,
) -> Any:
    """A model at these parameters whose layers have this dtype, with its weights; see `layers_in`.

    A saved model's layers ask for the dtype that it was saved in, and so do those of a file that loads one,
    or of a model that lived in memory: they are widened or narrowed as well.
    """
    widens = widens or (spec.is_saved and dtype != FLOAT32)
    model = _made(spec, params, dtype, seed, widens=widens)
    if dtype == FLOAT32 or widens or any(each.compute_dtype == dtype for each in _weighted(model)):
        return model
    return _made(spec, params, dtype, seed, widens=True)


def _made(spec: ModelSpec, params: Mapping[str, Scalar], dtype: str, seed: int, *, widens: bool) -> Any:
    import keras

    with layers_in(dtype, widens=widens):
        loaded = load(spec, f"{dtype} throughout" if widens else dtype)
        own = {name: value for name, value in params.items() if name in loaded.sizes_of_model}
        with in_folder(spec):
            seed_everything(seed)
            model = loaded.make(**own)
        if not isinstance(model, keras.Model):
            raise ModelMistake(
                f"{spec.text} gives no Keras model, but {type(model).__name__}.", "Return a keras.Model."
            )
        if not model.built:
            with in_folder(spec):
                given = _given(spec, params, model, 0)
            flat = [keras.ops.convert_to_tensor(each) for each in keras.tree.flatten(given)]
            called(model, keras.tree.pack_sequence_as(given, flat))
    return model


def _weighted(model: Any) -> list[Any]:
    """Its layers that have weights of their own, which are what computes most."""
    return [each for each in model._flatten_layers(include_self=False) if each._trainable_variables]


def called(model: Any, given: Any) -> Any:
    """What the model gives in inference.

    Several inputs are one argument where its `call` takes one, as that of layers put together does; a
    dictionary is then passed as it is, else by keyword.
    """
    if takes_one(model) or not isinstance(given, tuple | list | Mapping):
        return model(given, training=False)
    return model(**given, training=False) if isinstance(given, Mapping) else model(*given, training=False)


def takes_one(model: Any) -> bool:
    """Whether all inputs are one argument."""
    if _is_graph(model):
        return True
    parameters = inspect.signature(model.call).parameters.values()
    kinds = [each.kind for each in parameters]
    own = [each for each in parameters if each.name not in CONTEXT]
    return len(own) == 1 and inspect.Parameter.VAR_POSITIONAL not in kinds


def _is_graph(model: Any) -> bool:
    """Whether it is layers put together, not a class of the user's own."""
    import keras

    return isinstance(model, keras.Sequential) or type(model).__name__ == "Functional"


def made_inputs(
    spec: ModelSpec, params: Mapping[str, Scalar], model: Any, number: int
) -> tuple[dict[str, AnyArray], Any]:
    """The model's inputs by name, as arrays, and as they were given.

    `number`: which of them; each has a seed of its own.
    """
    with in_folder(spec):
        given = _given(spec, params, model, number)
        arrays = named_arrays(given)
        if number:
            first = named_arrays(_given(spec, params, model, 0))
            arrays = dict(other_than(first, arrays, number))
    return arrays, given


def named_arrays(value: Any) -> dict[str, AnyArray]:
    """Each tensor in what a model takes or gives, by its place there; a single one is called ""."""
    return {".".join(map(str, path)): as_array(each) for path, each in flat_with_path(value)}


def flat_with_path(value: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """Each tensor in what a model takes or gives, and how it is reached, step by step."""
    import keras

    if not keras.tree.is_nested(value):
        return [((), value)]
    return [(tuple(path), each) for path, each in keras.tree.flatten_with_path(value)]


def at(value: Any, path: Sequence[Any]) -> Any:
    """The tensor at a place in what a model gave."""
    for key in path:
        value = value[key]
    return value


def as_array(tensor: Any) -> AnyArray:
    """A tensor as NumPy has it; it has no bfloat16, whose values float32 holds."""
    import keras
    import numpy as np

    if keras.config.backend() == "torch" and keras.ops.is_tensor(tensor):
        return torch_module.as_array(tensor)
    values = tensor if isinstance(tensor, np.ndarray) else keras.ops.convert_to_numpy(tensor)
    array: AnyArray = np.array(values)
    return array.astype(np.float32) if array.dtype.kind not in "fiub" else array


def _given(spec: ModelSpec, params: Mapping[str, Scalar], model: Any, number: int) -> Any:
    """What its `inputs` gives, or the model says of them; with a file of inputs, those in the same places."""
    import keras

    like = _drawn(spec, params, model, number)
    if not spec.input:
        return like
    arrays = given_inputs.in_place_of(spec, named_arrays(like), _parameters(model), params)
    return keras.tree.pack_sequence_as(like, [*arrays.values()]) if keras.tree.is_nested(like) else arrays[""]


def _parameters(model: Any) -> list[str]:
    """What a model calls its arguments, in order."""
    if model.built and _is_graph(model):
        return [each.name for each in model.inputs]
    return parameters_of(model.call, without=CONTEXT)


def _drawn(spec: ModelSpec, params: Mapping[str, Scalar], model: Any, number: int) -> Any:
    loaded = load(spec)
    own = {name: value for name, value in params.items() if name in loaded.sizes_of_inputs}
    seed_everything(number)
    return loaded.inputs(**own) if loaded.inputs else _inputs_of_spec(spec, model, number, **own)


def _inputs_of_spec(spec: ModelSpec, model: Any, number: int, batch: Any) -> Any:
    """What the model says of its inputs: floats from N(0, 1), or indices that its smallest table has."""
    import keras
    import numpy as np

    try:
        wanted = model.inputs[0] if len(model.inputs) == 1 else model.input
    except (AttributeError, TypeError, ValueError) as error:  # a class of the user's own says nothing of them
        raise ModelMistake(f"{spec.text} has no inputs.", INPUTS) from error
    source = np.random.default_rng(number)
    tables = [each.input_dim for each in model._flatten_layers() if isinstance(each, keras.layers.Embedding)]

    def drawn(tensor: Any) -> AnyArray:
        shape = (batch, *tensor.shape[1:])
        if spec.input:  # has the lengths that the model leaves free
            shape = tuple(1 if each is None else each for each in shape)
        if None in shape:
            raise ModelMistake(f"{spec.text} takes inputs of any size: {tensor.shape}.", INPUTS)
        if tensor.dtype.startswith("int"):
            return source.integers(0, min(tables, default=2), shape, dtype=np.int32)
        values: AnyArray = source.standard_normal(shape, np.float32)
        return values

    made: Any = keras.tree.map_structure(drawn, wanted)
    return made


def weights_of(model: Any) -> dict[str, Any]:
    """Every variable by its number and name: the names of layers count those made before in the process."""
    return {f"{number}.{each.name}": each for number, each in enumerate(model.weights)}


def load_weights(model: Any, values: Mapping[str, AnyArray]) -> None:
    """Give the model's variables these values. Raises ValueError where it has others."""
    own = weights_of(model)
    if own.keys() != values.keys():
        raise ValueError(
            f"its weights differ from process to process: {sorted(own.keys() ^ values.keys())[:3]}"
        )
    for name, variable in own.items():
        variable.assign(values[name])


def outputs_of(value: Any) -> dict[str, Any]:
    """The tensors that a model gave, by name; a single one is the `output`."""
    return {".".join(map(str, path)) or OUTPUT: each for path, each in flat_with_path(value)}


def constant_weights(model: Any) -> list[str]:
    """The names of weights that training moves and whose elements are all equal, as biases are when new."""
    import numpy as np

    trained = {id(each) for each in model.trainable_weights}
    return [
        name
        for name, each in weights_of(model).items()
        if id(each) in trained and math.prod(each.shape) and np.ptp(as_array(each.value)) == 0
    ]
