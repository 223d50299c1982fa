"""A user's Keras 3 model: import, construction in a dtype, inputs, and weights by name.

The parent process sets KERAS_BACKEND to the worker's framework before Keras is imported.
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
from benchbench.model.user_model import ModelSpec
from benchbench.worker.user_models import input_file, torch_module
from benchbench.worker.user_models.source import (
    LoadedModel,
    ModelMistake,
    ModelSearch,
    default_sizes,
    distinct_inputs,
    import_model_file,
    in_model_folder,
    parameter_names,
    seed_everything,
)
from benchbench.workloads.base import OUTPUT

DEFAULT_BATCH: Mapping[str, Scalar] = {"batch": 1}  # for models whose own input spec is used
INPUTS_HINT = (
    "Add a function that makes the model's inputs, whose parameters are its sizes:\n"
    "def inputs(batch=1):\n"
    "    return numpy.random.rand(batch, 28, 28, 1)"
)
FLOAT32, FLOAT64 = "float32", "float64"
NARROW = ("float16", "bfloat16", FLOAT32)
CONTEXT = ("self", "training", "mask")  # parameters of `call` that are not inputs


@contextmanager
def layers_in(dtype: str, *, widens: bool = False) -> Iterator[None]:
    """Set the dtype of layers that are created in the block, unless they ask for another.

    With `widens`, override layers that ask for another dtype, and casts. Keras has no setting for that, so
    the meaning of the dtypes' names is changed.
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
    """Enable float64 in JAX for the block."""
    import keras

    if not widens or keras.config.backend() != "jax":
        yield
        return
    import jax

    with jax.enable_x64(True):
        yield


def use_cpu() -> None:
    """Restrict this process to the CPU."""
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
    """Set the device on which Keras with the torch backend creates tensors, for the rest of the process."""
    import keras

    keras.device(name).__enter__()  # never left: for the rest of the process


@cache
def load(spec: ModelSpec, dtype: str = FLOAT32) -> LoadedModel:
    """Import the model, once per process and dtype.

    The file may create layers while it is imported, so it is executed again for each dtype. Raises
    ModelMistake, and any exception of the user's file.
    """
    import keras

    with in_model_folder(spec):
        if spec.is_keras_file:
            saved = LoadedModel(spec.attribute, True, lambda: _load_saved(spec), {}, None, DEFAULT_BATCH)
            return input_file.with_file_sizes(spec, saved)
        module, search = import_model_file(spec, variant=dtype), ModelSearch((keras.Model,), "Keras model")
        name, model = search.find(module, spec)
        file_inputs = getattr(module, "inputs", None)
        inputs = (
            file_inputs if callable(file_inputs) and not isinstance(file_inputs, keras.KerasTensor) else None
        )
        input_sizes = default_sizes(inputs, "inputs") if inputs else DEFAULT_BATCH
        if not callable(model):
            raise ModelMistake(
                f"{name} is neither a Keras model nor a factory of one.", "Name a class or a function."
            )
        is_model = isinstance(model, keras.Model)
        make, sizes = (lambda: model, {}) if is_model else (model, default_sizes(model, name))
        is_default = name == search.default_name(module)
        return input_file.with_file_sizes(
            spec, LoadedModel(name, is_default, make, sizes, inputs, input_sizes)
        )


# First version whose safe mode has no known hole (CVE-2025-1550, CVE-2025-8747, CVE-2025-9906).
SAFE_KERAS = (3, 11)


def _load_saved(spec: ModelSpec) -> Any:
    """Load a saved model. Its layers must be Keras's own: safe mode refuses Python functions."""
    import keras

    if tuple(map(int, keras.__version__.split(".")[:2])) < SAFE_KERAS:
        raise ModelMistake(
            f"Keras {keras.__version__} may execute code from a file that it loads.",
            "Keras 3.11 and later do not: pip install --upgrade keras",
        )
    try:
        return keras.saving.load_model(spec.file, compile=False, safe_mode=True)
    except ValueError as error:
        if "safe_mode" not in str(error):
            raise
        raise ModelMistake(
            f"{spec.text} is refused: one of its layers is a Python function, which would be executed.",
            "Build the model in a Python file and name that file.",
        ) from error


def build(
    spec: ModelSpec,
    params: Mapping[str, Scalar],
    dtype: str = FLOAT32,
    seed: int = 0,
    *,
    widens: bool = False,
) -> Any:
    """Build a model at these parameters with layers of this dtype; see `layers_in`.

    The layers of a saved model ask for the dtype in which they were saved, and so do the layers of a file
    that loads a model. These models are widened or narrowed, too.
    """
    widens = widens or (spec.is_keras_file and dtype != FLOAT32)
    model = _build_once(spec, params, dtype, seed, widens=widens)
    if (
        dtype == FLOAT32
        or widens
        or any(layer.compute_dtype == dtype for layer in _layers_with_weights(model))
    ):
        return model
    return _build_once(spec, params, dtype, seed, widens=True)


def _build_once(spec: ModelSpec, params: Mapping[str, Scalar], dtype: str, seed: int, *, widens: bool) -> Any:
    import keras

    with layers_in(dtype, widens=widens):
        loaded = load(spec, f"{dtype} throughout" if widens else dtype)
        model_sizes = {name: value for name, value in params.items() if name in loaded.model_sizes}
        with in_model_folder(spec):
            seed_everything(seed)
            model = loaded.make(**model_sizes)
        if not isinstance(model, keras.Model):
            raise ModelMistake(
                f"{spec.text} is {type(model).__name__}, not a Keras model.", "Return a keras.Model."
            )
        if not model.built:
            with in_model_folder(spec):
                inputs = _inputs(spec, params, model, 0)
            flat = [keras.ops.convert_to_tensor(tensor) for tensor in keras.tree.flatten(inputs)]
            call(model, keras.tree.pack_sequence_as(inputs, flat))
    return model


def _layers_with_weights(model: Any) -> list[Any]:
    """Layers with weights of their own, which do most of the computation."""
    return [layer for layer in model._flatten_layers(include_self=False) if layer._trainable_variables]


def call(model: Any, inputs: Any) -> Any:
    """Call the model in inference mode.

    Models whose `call` takes a single argument, such as Functional models, get all inputs in it. Other models
    get a dictionary as keyword arguments, and a sequence as positional ones.
    """
    if takes_one(model) or not isinstance(inputs, tuple | list | Mapping):
        return model(inputs, training=False)
    return model(**inputs, training=False) if isinstance(inputs, Mapping) else model(*inputs, training=False)


def takes_one(model: Any) -> bool:
    """True if all inputs are passed in one argument."""
    if _is_graph(model):
        return True
    parameters = inspect.signature(model.call).parameters.values()
    kinds = [parameter.kind for parameter in parameters]
    inputs = [parameter for parameter in parameters if parameter.name not in CONTEXT]
    return len(inputs) == 1 and inspect.Parameter.VAR_POSITIONAL not in kinds


def _is_graph(model: Any) -> bool:
    """True for Sequential and Functional models, False for user-defined classes."""
    import keras

    return isinstance(model, keras.Sequential) or type(model).__name__ == "Functional"


def make_inputs(
    spec: ModelSpec, params: Mapping[str, Scalar], model: Any, number: int
) -> tuple[dict[str, AnyArray], Any]:
    """Return the inputs as arrays by path, and in the structure that `inputs` returned.

    Each number has its own seed.
    """
    with in_model_folder(spec):
        inputs = _inputs(spec, params, model, number)
        arrays = arrays_by_path(inputs)
        if number:
            first = arrays_by_path(_inputs(spec, params, model, 0))
            arrays = dict(distinct_inputs(first, arrays, number))
    return arrays, inputs


def arrays_by_path(value: Any) -> dict[str, AnyArray]:
    """Tensors in the model's inputs or outputs as arrays by path; a single one has the path ""."""
    return {".".join(map(str, path)): as_array(tensor) for path, tensor in flat_with_path(value)}


def flat_with_path(value: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """Tensors in the model's inputs or outputs, each with its path of keys."""
    import keras

    if not keras.tree.is_nested(value):
        return [((), value)]
    return [(tuple(path), tensor) for path, tensor in keras.tree.flatten_with_path(value)]


def tensor_at(value: Any, path: Sequence[Any]) -> Any:
    """The tensor at a path in the model's output."""
    for key in path:
        value = value[key]
    return value


def as_array(tensor: Any) -> AnyArray:
    """Convert to NumPy; bfloat16, which NumPy lacks, becomes float32."""
    import keras
    import numpy as np

    if keras.config.backend() == "torch" and keras.ops.is_tensor(tensor):
        return torch_module.as_array(tensor)
    values = tensor if isinstance(tensor, np.ndarray) else keras.ops.convert_to_numpy(tensor)
    array: AnyArray = np.array(values)
    return array.astype(np.float32) if array.dtype.kind not in "fiub" else array


def _inputs(spec: ModelSpec, params: Mapping[str, Scalar], model: Any, number: int) -> Any:
    """Inputs in the structure of the user's `inputs` or the model's own spec.

    If there is an input file, its elements are used.
    """
    import keras

    drawn = _drawn_inputs(spec, params, model, number)
    if not spec.input:
        return drawn
    arrays = input_file.arrays_for(spec, arrays_by_path(drawn), _argument_names(model), params)
    return (
        keras.tree.pack_sequence_as(drawn, [*arrays.values()]) if keras.tree.is_nested(drawn) else arrays[""]
    )


def _argument_names(model: Any) -> list[str]:
    """Names of the model's arguments, in order."""
    if model.built and _is_graph(model):
        return [tensor.name for tensor in model.inputs]
    return parameter_names(model.call, without=CONTEXT)


def _drawn_inputs(spec: ModelSpec, params: Mapping[str, Scalar], model: Any, number: int) -> Any:
    loaded = load(spec)
    input_sizes = {name: value for name, value in params.items() if name in loaded.input_sizes}
    seed_everything(number)
    return (
        loaded.inputs(**input_sizes) if loaded.inputs else _inputs_of_spec(spec, model, number, **input_sizes)
    )


def _inputs_of_spec(spec: ModelSpec, model: Any, number: int, batch: Any) -> Any:
    """Inputs by the model's own spec: floats from N(0, 1), or indices below the smallest table's size."""
    import keras
    import numpy as np

    try:
        input_spec = model.inputs[0] if len(model.inputs) == 1 else model.input
    except (AttributeError, TypeError, ValueError) as error:  # a user-defined class has no input spec
        raise ModelMistake(f"{spec.text} has no inputs.", INPUTS_HINT) from error
    source = np.random.default_rng(number)
    tables = [
        layer.input_dim for layer in model._flatten_layers() if isinstance(layer, keras.layers.Embedding)
    ]

    def draw(tensor: Any) -> AnyArray:
        shape = (batch, *tensor.shape[1:])
        if spec.input:  # the file determines the lengths that the model leaves free
            shape = tuple(1 if size is None else size for size in shape)
        if None in shape:
            raise ModelMistake(f"{spec.text} has inputs without a fixed size: {tensor.shape}.", INPUTS_HINT)
        if tensor.dtype.startswith("int"):
            return source.integers(0, min(tables, default=2), shape, dtype=np.int32)
        values: AnyArray = source.standard_normal(shape, np.float32)
        return values

    inputs: Any = keras.tree.map_structure(draw, input_spec)
    return inputs


def weights_of(model: Any) -> dict[str, Any]:
    """Variables by number and name. Layer names alone depend on earlier layers of the process."""
    return {f"{number}.{variable.name}": variable for number, variable in enumerate(model.weights)}


def load_weights(model: Any, values: Mapping[str, AnyArray]) -> None:
    """Assign values to the model's variables. Raises ValueError if the names differ."""
    variables = weights_of(model)
    if variables.keys() != values.keys():
        raise ValueError(
            f"its weights differ between processes: {sorted(variables.keys() ^ values.keys())[:3]}"
        )
    for name, variable in variables.items():
        variable.assign(values[name])


def outputs_of(value: Any) -> dict[str, Any]:
    """The model's outputs by name; a single one is called `output`."""
    return {".".join(map(str, path)) or OUTPUT: tensor for path, tensor in flat_with_path(value)}


def constant_weights(model: Any) -> list[str]:
    """Names of trainable weights whose elements are all equal, such as new biases."""
    import numpy as np

    trainable_ids = {id(variable) for variable in model.trainable_weights}
    return [
        name
        for name, variable in weights_of(model).items()
        if id(variable) in trainable_ids
        and math.prod(variable.shape)
        and np.ptp(as_array(variable.value)) == 0
    ]
