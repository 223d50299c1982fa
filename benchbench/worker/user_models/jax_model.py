"""A user's JAX function as a workload: import, construction, inputs, and arrays by path.

A flax or equinox module is treated as a function whose parameters are the module's arrays.
"""

from __future__ import annotations

import inspect
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from benchbench.arrays import AnyArray
from benchbench.model.case import Dtype, Scalar
from benchbench.model.user_model import JAX_MODULES, ModelSpec, classes_imported
from benchbench.worker.user_models import input_file, usage
from benchbench.worker.user_models.source import (
    LoadedModel,
    ModelMistake,
    ModelSearch,
    array_type,
    default_sizes,
    distinct_inputs,
    import_model_file,
    in_model_folder,
    most_taps,
    parameter_names,
    seed_everything,
)
from benchbench.worker.user_models.workload import INPUT, NOISE_SCALE, WEIGHT, ModelOperation
from benchbench.workloads.base import OUTPUT, DeviceContext, Draw, Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays

INPUTS_HINT = (
    "Add a function that makes the model's inputs, whose parameters are its sizes:\n"
    "def inputs(batch=1):\n"
    "    return numpy.random.randn(batch, 784).astype('float32')"
)
KEY, RNGS = "key", "rngs"  # names of random-key parameters in equinox and flax classes


@dataclass(frozen=True)
class Function:
    """A function `call(leaves, *args, **kwargs)`; `leaves` are the arrays of its parameters by name."""

    call: Callable[..., Any]
    leaves: Mapping[str, Any]


def use_cpu() -> None:
    """Restrict this process to the CPU."""
    import jax

    jax.config.update("jax_platforms", "cpu")


@cache
def load(spec: ModelSpec) -> LoadedModel:
    """Import the model, once per process. Raises ModelMistake, and any exception of the user's file."""
    with in_model_folder(spec):
        module, search = (
            import_model_file(spec),
            ModelSearch(classes_imported(JAX_MODULES), "JAX function or module"),
        )
        name, model = search.find(module, spec)
        inputs = getattr(module, "inputs", None)
        if not callable(inputs):
            if not spec.input:
                raise ModelMistake(f"{spec.text} has no inputs.", INPUTS_HINT)
            inputs = None
        make, sizes = _factory(model, name, getattr(module, "params", None))
        input_sizes = default_sizes(inputs, "inputs") if inputs else {}
        is_default = name == search.default_name(module)
        return input_file.with_file_sizes(
            spec, LoadedModel(name, is_default, make, sizes, inputs, input_sizes)
        )


def _factory(model: Any, name: str, params: Any) -> tuple[Callable[..., Any], Mapping[str, Scalar]]:
    """Return (factory, sizes). The factory returns the function, perhaps with its parameters."""
    if params is not None:
        sizes = default_sizes(params, "params", (KEY,)) if inspect.isroutine(params) else {}
        return _with_params(model, params), sizes
    if not inspect.isroutine(model) and not inspect.isclass(model):
        return lambda: model, {}
    return _bind_keys(model), default_sizes(_signature_owner(model), name, (KEY, RNGS, "self"))


def _with_params(model: Any, params: Any) -> Callable[..., tuple[Any, Any]]:
    """Return a factory of (function, parameters)."""
    if not inspect.isroutine(params):
        return lambda: (model, params)
    make_params = _bind_keys(params)
    return lambda **sizes: (model, make_params(**sizes))


def _signature_owner(function: Any) -> Any:
    """Return `__init__` for a class, since flax classes hide the signature of their `__init__`."""
    return function.__init__ if inspect.isclass(function) else function


def _bind_keys(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a factory to pass random keys to the parameters that need one."""
    import jax

    def make(**sizes: Any) -> Any:
        parameters = inspect.signature(_signature_owner(function)).parameters
        if KEY in parameters and parameters[KEY].default is inspect.Parameter.empty:
            sizes[KEY] = jax.random.PRNGKey(0)
        if RNGS in parameters and parameters[RNGS].default is inspect.Parameter.empty:
            from flax import nnx

            sizes[RNGS] = nnx.Rngs(0)
        return function(**sizes)

    return make


def build(spec: ModelSpec, params: Mapping[str, Scalar]) -> Function:
    """Build the function at these parameters for inference, with the same numbers in every process."""
    import jax

    model = module_of(spec, params)
    with in_model_folder(spec):
        if isinstance(model, tuple):
            function, tree = model
            if hasattr(function, "apply"):  # a module of flax's linen
                return _of_tree(function.apply, tree)
            return _of_tree(function, tree)
        if hasattr(model, "init") and hasattr(model, "apply"):
            arguments = arguments_like(_inputs(spec, params, 0))
            args, kwargs = arguments(arrays_by_path(_inputs(spec, params, 0)))
            return _of_tree(model.apply, model.init(jax.random.PRNGKey(0), *args, **kwargs))
    if is_nnx(model):
        return _of_nnx(model)
    if callable(model) and any(map(_is_weight, jax.tree.leaves(model))):
        if hasattr(model, "__dataclass_fields__"):
            import equinox

            model = equinox.nn.inference_mode(model)
        keys = {KEY: jax.random.PRNGKey(0)} if needs(model, KEY) else {}
        return _of_tree(lambda tree, *args, **kwargs: tree(*args, **{**keys, **kwargs}), model)
    raise ModelMistake(
        f"{spec.text} is {type(model).__name__}, not a JAX function with parameters.",
        "Write a function model(params, x), and params: a tree of arrays, or a function that makes one.",
    )


def module_of(spec: ModelSpec, params: Mapping[str, Scalar]) -> Any:
    """The module, or the function and its parameters, that the user's file makes at these sizes."""
    loaded = load(spec)
    model_sizes = {name: value for name, value in params.items() if name in loaded.model_sizes}
    with in_model_folder(spec):
        seed_everything(0)
        return loaded.make(**model_sizes)


def is_nnx(model: Any) -> bool:
    """True for a module of flax's nnx."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(model, nnx.Module)


def _of_nnx(module: Any) -> Function:
    from flax import nnx

    module.eval()
    graph, state = nnx.split(module)
    needs_rngs = needs(module, RNGS)

    def call(tree: Any, *args: Any, **kwargs: Any) -> Any:
        rngs = {RNGS: nnx.Rngs(0)} if needs_rngs and RNGS not in kwargs else {}
        return nnx.merge(graph, tree)(*args, **kwargs, **rngs)

    return _of_tree(call, state)


def needs(model: Any, name: str) -> bool:
    """True if calls of a module require a keyword argument of this name."""
    parameter = inspect.signature(type(model).__call__).parameters.get(name)
    return (
        parameter is not None
        and parameter.default is parameter.empty
        and parameter.kind is parameter.KEYWORD_ONLY
    )


def _of_tree(function: Callable[..., Any], tree: Any) -> Function:
    """Convert a function of a parameter tree to a function of the tree's arrays by name.

    Leaves that are not arrays of numbers stay constant.
    """
    import jax

    paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths]
    constants = [None if _is_weight(leaf) else leaf for _, leaf in paths]
    leaves = {name: leaf for name, (_, leaf) in zip(names, paths, strict=True) if _is_weight(leaf)}

    def call(leaves: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        values = [leaves.get(name, constant) for name, constant in zip(names, constants, strict=True)]
        return function(jax.tree_util.tree_unflatten(structure, values), *args, **kwargs)

    return Function(call, leaves)


def _is_weight(value: Any) -> bool:
    """True for an array of numbers that is not a random key."""
    import jax
    import numpy as np

    if isinstance(value, np.ndarray):
        return value.dtype.kind in "fiub"
    return isinstance(value, jax.Array) and not jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)


def make_inputs(
    spec: ModelSpec, params: Mapping[str, Scalar], number: int
) -> tuple[dict[str, AnyArray], Any]:
    """Return the inputs as arrays by path, and in the structure that `inputs` returned.

    Each number has its own seed.
    """
    with in_model_folder(spec):
        inputs = _inputs(spec, params, number)
        arrays = arrays_by_path(inputs)
        if number:
            arrays = dict(distinct_inputs(arrays_by_path(_inputs(spec, params, 0)), arrays, number))
    return arrays, inputs


def _inputs(spec: ModelSpec, params: Mapping[str, Scalar], number: int) -> Any:
    """Inputs in the structure of the user's `inputs`, with elements of the input file if there is one."""
    if not spec.input:
        return _drawn_inputs(spec, params, number)
    if load(spec).inputs is None:
        return input_file.unmatched_arrays(spec, params)
    drawn = _drawn_inputs(spec, params, number)
    arrays = input_file.arrays_for(spec, arrays_by_path(drawn), _argument_names(spec), params)
    return _with_arrays(drawn, arrays)


def _with_arrays(example: Any, arrays: Mapping[str, Any]) -> Any:
    """The example with other arrays in place of its own, by path."""
    import jax

    leaves = [arrays.get(name, leaf) for name, leaf in leaves_by_path(example).items()]
    return jax.tree.unflatten(jax.tree.structure(example), leaves)


def _argument_names(spec: ModelSpec) -> list[str]:
    """Names of the function's arguments after its parameters."""
    module = import_model_file(spec)
    function = getattr(module, load(spec).attribute)
    if getattr(module, "params", None) is None:
        return parameter_names(
            function.__call__ if inspect.isclass(function) else function, without=("self",)
        )
    return parameter_names(function)[1:]


def _drawn_inputs(spec: ModelSpec, params: Mapping[str, Scalar], number: int) -> Any:
    loaded = load(spec)
    input_sizes = {name: value for name, value in params.items() if name in loaded.input_sizes}
    seed_everything(number)
    assert loaded.inputs
    return loaded.inputs(**input_sizes)


def arrays_by_path(value: Any) -> dict[str, AnyArray]:
    """Arrays and numbers in the function's inputs by path; a single one has the path ""."""
    return {name: as_array(leaf) for name, leaf in leaves_by_path(value).items() if not _is_constant(leaf)}


def _is_constant(leaf: Any) -> bool:
    """True for an input that is always passed as it is: a switch, a name or a random key."""
    import jax

    is_key = isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return is_key or isinstance(leaf, bool | str)


def leaves_by_path(value: Any) -> dict[str, Any]:
    """Leaves of a tree by path, such as `0.mask`."""
    import jax

    paths, _ = jax.tree_util.tree_flatten_with_path(value)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in paths}


def outputs_of(value: Any) -> dict[str, Any]:
    """The function's outputs by name; a single one is called `output`."""
    return {name or OUTPUT: leaf for name, leaf in leaves_by_path(value).items()}


def arguments_like(example: Any) -> Callable[[Mapping[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]:
    """Return a function that makes (args, kwargs) from arrays by path, with the example's constants.

    A dictionary is passed by keyword.
    """

    def arguments(arrays: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        inputs = _with_arrays(example, arrays)
        if isinstance(inputs, dict):
            return (), inputs
        return (inputs, {}) if isinstance(inputs, tuple) else ((inputs,), {})

    return arguments


def as_array(value: Any) -> AnyArray:
    """Convert to NumPy with the same shape; bfloat16, which NumPy lacks, becomes float32."""
    import numpy as np

    array: AnyArray = np.array(value)
    return array.astype(np.float32) if array.dtype.kind not in "fiub" else array


DIGEST_DIGITS = 8


def graph_of(spec: ModelSpec, params: Mapping[str, Scalar]) -> dict[str, Any]:
    """Facts of a function at these parameters; see `torch_graph.graph_of`."""
    import jax
    import numpy as np

    function = build(spec, params)
    arrays, inputs = make_inputs(spec, params, 0)
    arguments = arguments_like(inputs)

    def call(leaves: Any, arrays: Any) -> Any:
        args, kwargs = arguments(arrays)
        return function.call(leaves, *args, **kwargs)

    traced, shapes = jax.make_jaxpr(call, return_shape=True)(dict(function.leaves), arrays)
    outputs = outputs_of(shapes)
    if not outputs:
        raise ModelMistake(f"{spec.text} gives no array.", "Return one, or a tuple or dict of them.")
    sizes = [
        (math.prod(array.shape), str(array.dtype))
        for array in (*function.leaves.values(), *arrays.values(), *outputs.values())
    ]
    weights = [[name, list(leaf.shape)] for name, leaf in function.leaves.items()]
    equations = [
        [primitive, *(f"{name}={value}" for name, value in sorted(parameters.items()) if _is_plain(value))]
        for primitive, parameters in _equations(traced.jaxpr)
    ]
    return {
        "digest": sha256(json.dumps([weights, equations]).encode()).hexdigest()[:DIGEST_DIGITS],
        "flops": int(flops_of(traced.jaxpr)),
        "taps": most_taps((shape for _, shape in weights), channels_last=True),
        "parameters": sum(math.prod(leaf.shape) for leaf in function.leaves.values() if _is_real(leaf)),
        "constants": len(constant_leaves(function.leaves)),
        "floats": sum(size for size, dtype in sizes if "float" in dtype),
        "other_bytes": sum(size * np.dtype(dtype).itemsize for size, dtype in sizes if "float" not in dtype),
        "outputs": {name: list(array.shape) for name, array in outputs.items()},
        "takes": [array_type(array.dtype, array.shape) for array in arrays.values()],
        "gives": [array_type(array.dtype, array.shape) for array in outputs.values()],
        "takes_images": False,
        "integers": [name for name, array in outputs.items() if "float" not in str(array.dtype)],
        "places": {},
        **_setup(spec, params, inputs),
    }


def constant_leaves(leaves: Mapping[str, Any]) -> list[str]:
    """Names of float arrays whose elements are all equal, such as new biases."""
    import numpy as np

    return [
        name
        for name, leaf in leaves.items()
        if _is_real(leaf) and math.prod(leaf.shape) and np.ptp(as_array(leaf)) == 0
    ]


def _is_real(value: Any) -> bool:
    return "float" in str(value.dtype)


def inner_jaxprs(parameters: Mapping[str, Any]) -> list[Any]:
    """The jaxprs among an equation's parameters, including those of branches."""
    from jax.extend import core

    def nested_jaxprs(value: Any) -> Iterator[Any]:
        if isinstance(value, core.ClosedJaxpr):
            yield value.jaxpr
        elif isinstance(value, core.Jaxpr):
            yield value
        elif isinstance(value, tuple | list):
            for part in value:
                yield from nested_jaxprs(part)

    return [jaxpr for value in parameters.values() for jaxpr in nested_jaxprs(value)]


def _equations(jaxpr: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the name and parameters of each equation, inner jaxprs inlined at their call."""
    for equation in jaxpr.eqns:
        inner = inner_jaxprs(equation.params)
        if not inner or equation.primitive.name in ("scan", "while", "cond"):
            yield equation.primitive.name, equation.params
        for inner_jaxpr in inner:
            yield from _equations(inner_jaxpr)


def _is_plain(value: Any) -> bool:
    """True for numbers and strings, and tuples of these."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | str)


def flops_of(jaxpr: Any) -> float:
    """FLOPs of products and convolutions. A loop of unknown length counts as one iteration."""
    total = 0.0
    for equation in jaxpr.eqns:
        name, inner = equation.primitive.name, inner_jaxprs(equation.params)
        if name in FLOPS_OF_PRIMITIVE:
            total += FLOPS_OF_PRIMITIVE[name](equation)
        elif name == "cond":
            total += max(map(flops_of, inner), default=0.0)
        else:
            total += (equation.params["length"] if name == "scan" else 1) * sum(map(flops_of, inner))
    return total


def _dot_flops(equation: Any) -> float:
    (contracted, _), _ = equation.params["dimension_numbers"]
    shape = equation.invars[0].aval.shape
    terms = math.prod(shape[axis] for axis in contracted)
    return float(2 * math.prod(equation.outvars[0].aval.shape) * terms)


def _convolution_flops(equation: Any) -> float:
    kernel, features = equation.invars[1].aval.shape, equation.params["dimension_numbers"].rhs_spec[0]
    return float(2 * math.prod(equation.outvars[0].aval.shape) * math.prod(kernel) / kernel[features])


FLOPS_OF_PRIMITIVE: Mapping[str, Callable[[Any], float]] = {
    "dot_general": _dot_flops,
    "conv_general_dilated": _convolution_flops,
}


@dataclass(frozen=True)
class JaxInference(ModelOperation):
    """The outputs of a user's JAX function."""

    def load(self) -> LoadedModel:
        return load(self.spec)

    def graph_of(self) -> dict[str, Any]:
        return graph_of(self.spec, self.sizes)

    def make_inputs(self, number: int) -> dict[str, AnyArray]:
        return make_inputs(self.spec, self.sizes, number)[0]

    def make_weights(self) -> dict[str, AnyArray]:
        """Parameters of the function. Constant arrays get random noise; see `workload.make_weights`."""
        import numpy as np

        leaves = build(self.spec, self.sizes).leaves
        weights = {name: as_array(leaf) for name, leaf in leaves.items()}
        for name in () if self.spec.as_they_are else constant_leaves(leaves):
            noise = Draw(Dtype.FLOAT32).normal(name, *weights[name].shape, scale=NOISE_SCALE)
            weights[name] = weights[name] + np.asarray(noise).reshape(weights[name].shape)
        return weights

    def tensors(self, arrays: Arrays, put: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return (weights, inputs) by name, each array converted by `put`."""
        return (
            {
                name.removeprefix(WEIGHT): put(array)
                for name, array in arrays.items()
                if name.startswith(WEIGHT)
            },
            {name.removeprefix(INPUT): put(array) for name, array in arrays.items() if self.is_input(name)},
        )

    def outputs(self) -> Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]:
        """Return the function of weights and inputs by name; it returns its outputs by name."""
        function = build(self.spec, self.sizes)
        arguments = arguments_like(make_inputs(self.spec, self.sizes, 0)[1])

        def compute(leaves: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
            args, kwargs = arguments(inputs)
            return outputs_of(function.call(leaves, *args, **kwargs))

        return compute

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Program with the weights as arguments, since XLA treats closed-over arrays as constants."""
        compute = self.outputs()
        weights, inputs = self.tensors(arrays, context.put)
        names = list(inputs)

        def step(weights: Any, *inputs: Any) -> Any:
            outputs = tuple(compute(weights, dict(zip(names, inputs, strict=True))).values())
            return outputs if len(outputs) > 1 else outputs[0]

        def make_inputs(arrays: Arrays) -> tuple[Any, ...]:
            return weights, *self.tensors(arrays, context.put)[1].values()

        return Program(step, make_inputs(arrays), inputs_of=make_inputs)


def _setup(spec: ModelSpec, sizes: Mapping[str, Scalar], inputs: Any) -> dict[str, Any]:
    """Setup of a JAX function or module with these example inputs: `model(params, *inputs)`."""
    loaded, file = load(spec), import_model_file(spec)
    imports, prefix = usage.source_of(spec)
    name = f"{prefix}{loaded.attribute}"
    form = usage.form_of(inputs, lambda _: True)
    lines: list[str] = []
    if spec.input:
        imports.append("import numpy")
        lines += usage.stored_inputs(spec, form, "{}")
    else:
        lines += usage.inputs_line(loaded.inputs, prefix, sizes, loaded.input_sizes)
    attribute, params = getattr(file, loaded.attribute), getattr(file, "params", None)
    arguments = usage.CALLS[form]
    keys = {KEY: "jax.random.PRNGKey(0)", RNGS: "nnx.Rngs(0)"}

    def construct(function: Any, name: str) -> str:
        if not inspect.isroutine(function) and not inspect.isclass(function):
            return name
        parameters = inspect.signature(
            function.__init__ if inspect.isclass(function) else function
        ).parameters.values()
        required = {parameter.name for parameter in parameters if parameter.default is parameter.empty}
        more = [f"{key}={value}" for key, value in keys.items() if key in required]
        return usage.call(name, sizes, loaded.model_sizes, *more)

    if params is not None:
        lines.append(f"params = {construct(params, f'{prefix}params')}")
        lines.append(f"model = {name}{'.apply' if hasattr(attribute, 'apply') else ''}")
        return {"setup": [["import jax", *imports], lines], "form": form}
    lines.append(f"module = {construct(attribute, name)}")
    module = module_of(spec, sizes)
    if isinstance(module, tuple):
        lines[-1] = lines[-1].replace("module =", "model, params =")
        if hasattr(module[0], "apply"):
            lines.append("model = model.apply")
    elif hasattr(module, "init") and hasattr(module, "apply"):
        lines.append(f"model, params = module.apply, module.init(jax.random.PRNGKey(0), {arguments})")
    elif is_nnx(module):
        imports.append("from flax import nnx")
        rngs = ", rngs=nnx.Rngs(0)" if needs(module, RNGS) else ""
        lines += [
            "module.eval()",
            "graph, params = nnx.split(module)",
            f"model = lambda params, *args, **kwargs: nnx.merge(graph, params)(*args, **kwargs{rngs})",
        ]
    elif hasattr(module, "__dataclass_fields__"):
        imports.append("import equinox")
        key = ", key=jax.random.PRNGKey(0)" if needs(module, KEY) else ""
        lines += [
            "params, static = equinox.partition(equinox.nn.inference_mode(module), equinox.is_array)",
            f"model = lambda params, *args, **kwargs: equinox.combine(params, static)(*args, **kwargs{key})",
        ]
    else:
        lines += ["params = module", "model = lambda params, *args, **kwargs: params(*args, **kwargs)"]
    return {"setup": [["import jax", *imports], lines], "form": form}
