"""A user's JAX function and its parameters: found where a spec says, made, given inputs; its arrays by name.

A module of flax or equinox is such a function, whose parameters it holds itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from benchbench.arrays import AnyArray
from benchbench.model.case import Scalar
from benchbench.model.own import MODULES_OF_JAX, ModelSpec, classes_imported
from benchbench.worker.own import given_inputs
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

INPUTS = (
    "Add a function that makes the model's inputs, whose parameters are its sizes:\n"
    "def inputs(batch=1):\n"
    "    return numpy.random.randn(batch, 784).astype('float32')"
)
KEY, RNGS = "key", "rngs"  # parameters of modules' classes that are random keys: equinox's, flax's


@dataclass(frozen=True)
class Function:
    """`call(leaves, *args, **kwargs)`, where `leaves` are the arrays of its parameters by name."""

    call: Callable[..., Any]
    leaves: Mapping[str, Any]


def use_cpu() -> None:
    """Have this process compute on the CPU alone: it describes, or computes a reference."""
    import jax

    jax.config.update("jax_platforms", "cpu")


@cache
def load(spec: ModelSpec) -> Loaded:
    """Import what the spec names, once in a process. Raises ModelMistake, and whatever the file raises."""
    with in_folder(spec):
        module, sought = imported(spec), Sought(classes_imported(MODULES_OF_JAX), "JAX function or module")
        name, found = sought.named_in(module, spec)
        inputs = getattr(module, "inputs", None)
        if not callable(inputs):
            if not spec.input:
                raise ModelMistake(f"{spec.text} has no inputs.", INPUTS)
            inputs = None
        make, sizes = _factory(found, name, getattr(module, "params", None))
        of_inputs = sizes_of(inputs, "inputs") if inputs else {}
        is_default = name == sought.default_in(module)
        return given_inputs.sized(spec, Loaded(name, is_default, make, sizes, inputs, of_inputs))


def _factory(found: Any, name: str, params: Any) -> tuple[Callable[..., Any], Mapping[str, Scalar]]:
    """What makes the function, perhaps with its parameters, and its sizes; an object is the module itself."""
    if params is not None:
        sizes = sizes_of(params, "params", (KEY,)) if inspect.isroutine(params) else {}
        return _with_params(found, params), sizes
    if not inspect.isroutine(found) and not inspect.isclass(found):
        return lambda: found, {}
    return _keyed(found), sizes_of(_signed(found), name, (KEY, RNGS, "self"))


def _with_params(model: Any, params: Any) -> Callable[..., tuple[Any, Any]]:
    """What makes a pair of a function and its parameters."""
    if not inspect.isroutine(params):
        return lambda: (model, params)
    made = _keyed(params)
    return lambda **sizes: (model, made(**sizes))


def _signed(function: Any) -> Any:
    """What has the signature: a class of flax's does not tell that of its `__init__`."""
    return function.__init__ if inspect.isclass(function) else function


def _keyed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, given the random keys that it asks for."""
    import jax

    def made(**sizes: Any) -> Any:
        asked = inspect.signature(_signed(function)).parameters
        if KEY in asked and asked[KEY].default is inspect.Parameter.empty:
            sizes[KEY] = jax.random.PRNGKey(0)
        if RNGS in asked and asked[RNGS].default is inspect.Parameter.empty:
            from flax import nnx

            sizes[RNGS] = nnx.Rngs(0)
        return function(**sizes)

    return made


def built(spec: ModelSpec, params: Mapping[str, Scalar]) -> Function:
    """The function at these parameters, in inference; the same numbers in every process."""
    import jax

    loaded = load(spec)
    own = {name: value for name, value in params.items() if name in loaded.sizes_of_model}
    with in_folder(spec):
        seed_everything(0)
        made = loaded.make(**own)
        if isinstance(made, tuple):
            function, tree = made
            if hasattr(function, "apply"):  # a module of flax's linen
                return _of_tree(function.apply, tree)
            return _of_tree(function, tree)
        if hasattr(made, "init") and hasattr(made, "apply"):
            given = arguments_like(_given(spec, params, 0))
            own_, named = given(named_arrays(_given(spec, params, 0)))
            return _of_tree(made.apply, made.init(jax.random.PRNGKey(0), *own_, **named))
    if _is_nnx(made):
        return _of_nnx(made)
    if callable(made) and any(map(_is_weight, jax.tree.leaves(made))):
        if hasattr(made, "__dataclass_fields__"):
            import equinox

            made = equinox.nn.inference_mode(made)
        return _of_tree(lambda tree, *given, **named: tree(*given, **named), made)
    raise ModelMistake(
        f"{spec.text} gives no JAX function with parameters, but {type(made).__name__}.",
        "Write a function model(params, x), and params: a tree of arrays, or a function that makes one.",
    )


def _is_nnx(made: Any) -> bool:
    import sys

    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(made, nnx.Module)


def _of_nnx(module: Any) -> Function:
    from flax import nnx

    module.eval()
    graph, state = nnx.split(module)

    def call(tree: Any, *given: Any, **named: Any) -> Any:
        return nnx.merge(graph, tree)(*given, **named)

    return _of_tree(call, state)


def _of_tree(function: Callable[..., Any], tree: Any) -> Function:
    """The function of a tree as one of its arrays; what is no array of numbers stays as it is."""
    import jax

    paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths]
    rest = [None if _is_weight(each) else each for _, each in paths]
    leaves = {name: each for name, (_, each) in zip(names, paths, strict=True) if _is_weight(each)}

    def call(leaves: Mapping[str, Any], *given: Any, **named: Any) -> Any:
        whole = [leaves.get(name, other) for name, other in zip(names, rest, strict=True)]
        return function(jax.tree_util.tree_unflatten(structure, whole), *given, **named)

    return Function(call, leaves)


def _is_weight(value: Any) -> bool:
    """Whether it is an array of numbers, and no random key."""
    import jax
    import numpy as np

    if isinstance(value, np.ndarray):
        return value.dtype.kind in "fiub"
    return isinstance(value, jax.Array) and not jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)


def made_inputs(
    spec: ModelSpec, params: Mapping[str, Scalar], number: int
) -> tuple[dict[str, AnyArray], Any]:
    """The inputs by name, as arrays, and as they were given; each number has a seed of its own."""
    with in_folder(spec):
        given = _given(spec, params, number)
        arrays = named_arrays(given)
        if number:
            arrays = dict(other_than(named_arrays(_given(spec, params, 0)), arrays, number))
    return arrays, given


def _given(spec: ModelSpec, params: Mapping[str, Scalar], number: int) -> Any:
    """What its `inputs` gives; with a file of inputs, those in the same places."""
    import jax

    if not spec.input:
        return _drawn(spec, params, number)
    if load(spec).inputs is None:
        return given_inputs.alone(spec, params)
    like = _drawn(spec, params, number)
    arrays = given_inputs.in_place_of(spec, named_arrays(like), _parameters(spec), params)
    return jax.tree.unflatten(jax.tree.structure(like), list(arrays.values()))


def _parameters(spec: ModelSpec) -> list[str]:
    """What the function calls its arguments besides its parameters, in order."""
    module = imported(spec)
    function = getattr(module, load(spec).attribute)
    if getattr(module, "params", None) is None:
        return parameters_of(function.__call__ if inspect.isclass(function) else function, without=("self",))
    return parameters_of(function)[1:]


def _drawn(spec: ModelSpec, params: Mapping[str, Scalar], number: int) -> Any:
    loaded = load(spec)
    own = {name: value for name, value in params.items() if name in loaded.sizes_of_inputs}
    seed_everything(number)
    assert loaded.inputs
    return loaded.inputs(**own)


def named_arrays(value: Any) -> dict[str, AnyArray]:
    """Each array in what a function takes or gives, by its place there; a single one is called ""."""
    return {name: as_array(each) for name, each in named(value).items()}


def named(value: Any) -> dict[str, Any]:
    """The same as they are."""
    import jax

    paths, _ = jax.tree_util.tree_flatten_with_path(value)
    return {jax.tree_util.keystr(path, simple=True, separator="."): each for path, each in paths}


def outputs_of(value: Any) -> dict[str, Any]:
    """The arrays that a function gave, by name; a single one is the `output`."""
    return {name or OUTPUT: each for name, each in named(value).items()}


def arguments_like(given: Any) -> Callable[[Mapping[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]:
    """A function of arrays by name that makes the arguments: a dictionary is passed by keyword."""
    import jax

    structure = jax.tree.structure(given)

    def arguments(own: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        made = jax.tree.unflatten(structure, list(own.values()))
        if isinstance(made, dict):
            return (), made
        return (made, {}) if isinstance(made, tuple) else ((made,), {})

    return arguments


def as_array(value: Any) -> AnyArray:
    """An array as NumPy has it, of the same rank; it has no bfloat16, whose values float32 holds."""
    import numpy as np

    array: AnyArray = np.array(value)
    return array.astype(np.float32) if array.dtype.kind not in "fiub" else array
