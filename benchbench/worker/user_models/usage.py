"""Python code that runs a user's model as a case did: import, construction, inputs, engine and call."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from benchbench.arrays import AnyArray
from benchbench.model.case import AMP, Case, Dtype, Phase, Scalar
from benchbench.model.user_model import JAX, KERAS, MEMORY_FOLDER, ONNX, TORCH, TRAINING, ModelSpec, relative
from benchbench.worker.user_models import input_file
from benchbench.worker.user_models.source import import_model_file, package_of
from benchbench.worker.user_models.transformers_model import EXPORTABLE_EXPERTS

if TYPE_CHECKING:
    from benchbench.backends.base import Backend

# Structures of the inputs: one tensor, a tuple, a dictionary, or deeper ones that are passed by position or
# by keyword.
ONE, TUPLE, DICT, DEEP_TUPLE, DEEP_DICT = "one", "tuple", "dict", "deep tuple", "deep dict"
CALLS = {ONE: "inputs", TUPLE: "*inputs", DICT: "**inputs", DEEP_TUPLE: "*inputs", DEEP_DICT: "**inputs"}
EXAMPLES = {
    ONE: "(inputs,)",
    TUPLE: "tuple(inputs)",
    DICT: "(), kwargs=inputs",
    DEEP_TUPLE: "tuple(inputs)",
    DEEP_DICT: "(), kwargs=inputs",
}
LEAVES = {TUPLE: "inputs", DICT: "inputs.values()"}  # tensors in order
# Names that the code assigns; a file of such a name is imported under another one.
ASSIGNED = frozenset(
    [
        *(
            "arrays",
            "compiled",
            "config",
            "fields",
            "graph",
            "inputs",
            "loss",
            "model",
            "module",
            "optimizer",
        ),
        *("output", "outputs", "params", "program", "run", "session", "static", "step", "targets", "weights"),
    ]
)
EXPORT = "torch.onnx.export"
PREAMBLE = ("import ", "os.environ")  # lines of an engine's code that precede the import of the model
PROVIDERS = {"cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}


def usage_code(backend: Backend, spec: ModelSpec, graph: Mapping[str, Any], case: Case) -> str:
    """Code that runs the model as in this case, or "" if the backend has none for its mode.

    `graph`: the facts of the model, with its setup.
    """
    kind = TRAINING if case.phase is Phase.TRAIN else spec.kind
    engine = backend.model_code.get((kind, case.mode))
    if engine is None or spec.step:  # a step of a language model is not called by itself
        return ""
    engine = engine.replace("<HINT>", backend.code_hints.get(case.dtype or Dtype.FLOAT32, ""))
    native = graph.get("weights_dtype") or str(Dtype.FLOAT32)
    dtype = (case.dtype or Dtype.FLOAT32).storage
    is_converted = spec.kind != ONNX and str(dtype) != native
    if spec.is_program and is_converted:  # programs check the dtypes of their tensors
        return ""
    form = graph["form"]
    imports, lines = (list(part) for part in graph["setup"])
    if is_converted:
        has_floats = any(text.startswith("float") for text in graph["takes"])
        first, later = _conversion(spec.kind, form, str(dtype), has_floats=has_floats)
        imports, lines = first + imports, lines + later
    if case.dtype is Dtype.TF32 and spec.kind == TORCH:
        lines.append('torch.set_float32_matmul_precision("high")')
    if case.phase is Phase.TRAIN:
        lines += _step(graph, case)
    if graph.get("mixes_experts") and EXPORT in engine:
        lines.append(f'model.set_experts_implementation("{EXPORTABLE_EXPERTS}")')
    filled = _filled(engine, spec, form, case)
    preamble = [line for line in filled if line.startswith(PREAMBLE)]
    rest = [line for line in filled if line not in preamble]
    return "\n".join([*dict.fromkeys([*preamble, *imports]), *lines, *rest])


def _filled(engine: str, spec: ModelSpec, form: str, case: Case) -> list[str]:
    """Lines of the engine's code with its placeholders replaced."""
    kind = case.device.partition(":")[0]
    provider = f', providers=["{PROVIDERS[kind]}"]' if kind in PROVIDERS else ""
    move = []
    if kind != "cpu":
        move = [f'model = model.to("{case.device}")', _mapped(form, f'{{}}.to("{case.device}")')]
    layout = "{}.to(memory_format=torch.channels_last)"
    if form != ONE:
        layout += " if {}.ndim == 4 else {}"
    leaves = LEAVES.get(
        form, "[x for x in torch.utils._pytree.tree_leaves(inputs) if isinstance(x, torch.Tensor)]"
    )
    tensor = "inputs" if form == ONE else "x"
    array = f"{tensor}.numpy()"
    if case.dtype is Dtype.BFLOAT16:  # NumPy has no bfloat16
        array = f"openvino.Tensor({tensor}.view(torch.int16).numpy(), {tensor}.shape, openvino.Type.bf16)"
    replacements = {
        "MOVE": "\n".join(move),
        "LAYOUT": _mapped(form, layout),
        "CALL": CALLS[form],
        "EXAMPLE": EXAMPLES[form],
        "ARRAYS": f"[{array}]" if form == ONE else f"[{array} for x in {leaves}]",
        "PROVIDERS": provider,
        "FILE": _path(spec),
    }
    for name, text in replacements.items():
        engine = engine.replace(f"<{name}>", text)
    return [line for line in engine.splitlines() if line]


def _mapped(form: str, expression: str) -> str:
    """Line that replaces each input by an expression of it, in which `{}` stands for the tensor."""
    if form == ONE:
        return f"inputs = {expression.replace('{}', 'inputs')}"
    expression = expression.replace("{}", "x")
    if form == TUPLE:
        return f"inputs = [{expression} for x in inputs]"
    return f"inputs = torch.utils._pytree.tree_map_only(torch.Tensor, lambda x: {expression}, inputs)"


def _conversion(kind: str, form: str, dtype: str, *, has_floats: bool) -> tuple[list[str], list[str]]:
    """Lines before the import of the file, and after the construction, that make the model use `dtype`."""
    if kind == KERAS:
        return ["import keras", f'keras.config.set_dtype_policy("{dtype}")'], []
    if kind == JAX:
        wide = ["import jax", 'jax.config.update("jax_enable_x64", True)'] if dtype == "float64" else []
        convert = f'x.astype("{dtype}") if jax.numpy.issubdtype(x.dtype, jax.numpy.floating) else x'
        return wide, [f"params, inputs = jax.tree.map(lambda x: {convert}, (params, inputs))"]
    convert = f"{{}}.to(torch.{dtype})" + " if {}.is_floating_point() else {}" * (form != ONE)
    inputs = [_mapped(form, convert)] if has_floats else []
    return [], [f"model = model.to(torch.{dtype})", *inputs]


def _step(graph: Mapping[str, Any], case: Case) -> list[str]:
    """The training step: zero_grad, forward, backward, update."""
    assert case.dtype
    forward = [f"output = model({CALLS[graph['form']]})", f"loss = {graph['loss']}"]
    if case.dtype in AMP:
        kind, compute = case.device.partition(":")[0], case.dtype.compute
        forward = [f'with torch.autocast("{kind}", torch.{compute}):', *(f"    {line}" for line in forward)]
    body = ["optimizer.zero_grad()", *forward, "loss.backward()", "optimizer.step()", "return loss.detach()"]
    return ["def step():", *(f"    {line}" for line in body)]


def form_of(inputs: Any, is_leaf: Callable[[Any], bool]) -> str:
    """Structure of a model's inputs; `is_leaf` is True for a tensor or array."""
    if isinstance(inputs, Mapping):
        return DICT if all(map(is_leaf, inputs.values())) else DEEP_DICT
    if isinstance(inputs, tuple | list):
        return TUPLE if all(map(is_leaf, inputs)) else DEEP_TUPLE
    return ONE


def _quoted(text: str) -> str:
    """A string of Python in double quotes."""
    return json.dumps(text, ensure_ascii=False)


def _path(spec: ModelSpec) -> str:
    """Path of the model's file from the working folder."""
    return relative(spec).partition(":")[0]


def source_of(spec: ModelSpec) -> tuple[list[str], str]:
    """Lines that import the model's file, and the prefix of its names in the code.

    Both are empty for a model in memory, whose names the user's program has.
    """
    if not spec.file:
        return [f"import {spec.module}"], f"{spec.module}."
    if PurePath(spec.file).parent.name.startswith(MEMORY_FOLDER):
        return [], ""
    path = PurePath(_path(spec))
    folder, stem = path.parent.as_posix(), path.stem
    package, root = package_of(Path(spec.file))
    is_inside = root.is_relative_to(spec.folder)
    if package and is_inside and stem.isidentifier():
        folder = root.relative_to(spec.folder).as_posix()
        lines = [] if folder == "." else ["import sys", f"sys.path.insert(0, {_quoted(folder)})"]
        return [*lines, f"import {package}.{stem}"], f"{package}.{stem}."
    lines = [] if folder == "." else ["import sys", f"sys.path.insert(0, {_quoted(folder)})"]
    if not stem.isidentifier():
        return [*lines, "import importlib", f"source = importlib.import_module({_quoted(stem)})"], "source."
    if stem in ASSIGNED:
        return [*lines, f"import {stem} as source"], "source."
    return [*lines, f"import {stem}"], f"{stem}."


def inputs_line(
    make: Any, prefix: str, sizes: Mapping[str, Scalar], defaults: Mapping[str, Scalar]
) -> list[str]:
    """Line that makes the inputs by the user's function; none if the user's program has them."""
    if not prefix and make.__name__ == "<lambda>" and not inspect.signature(make).parameters:
        return []  # the user passed the inputs themselves
    return [f"inputs = {call(f'{prefix}inputs', sizes, defaults)}"]


def call(function: str, sizes: Mapping[str, Scalar], defaults: Mapping[str, Scalar], *more: str) -> str:
    """Call of a function with those sizes that differ from its defaults; `more`: further arguments."""
    changed = (
        f"{name}={sizes[name]!r}" for name, default in defaults.items() if sizes.get(name, default) != default
    )
    return f"{function}({', '.join([*more, *changed])})"


def drawn(arrays: Mapping[str, AnyArray], form: str, library: str) -> str:
    """Expression of random inputs with these names, shapes and dtypes, for `torch` or `numpy`."""
    expressions = {name: _random(array, library) for name, array in arrays.items()}
    if form in (DICT, DEEP_DICT):
        return "{" + ", ".join(f"{_quoted(name)}: {text}" for name, text in expressions.items()) + "}"
    if form == ONE:
        return next(iter(expressions.values()))
    return _tuple(expressions.values())


def _tuple(expressions: Iterable[str]) -> str:
    texts = [*expressions]
    return f"({', '.join(texts)}{',' * (len(texts) == 1)})"


def _random(array: AnyArray, library: str) -> str:
    """Expression of a random array: floats from N(0, 1), integers up to the largest one."""
    shape, dtype = ", ".join(map(str, array.shape)), array.dtype.name
    if library == "torch":
        if dtype == "float32":
            return f"torch.randn({shape})"
        if array.dtype.kind == "f":
            return f"torch.randn({shape}, dtype=torch.{dtype})"
        if array.dtype.kind == "b":
            return f"torch.ones({shape}, dtype=torch.bool)"
        size = f"({shape}{',' * (array.ndim == 1)})"
        suffix = "" if dtype == "int64" else f", dtype=torch.{dtype}"
        return f"torch.randint(0, {_upper(array)}, {size}{suffix})"
    if array.dtype.kind == "f":
        return f'numpy.random.standard_normal(({shape}{"," * (array.ndim == 1)})).astype("{dtype}")'
    return f'numpy.random.randint(0, {_upper(array)}, ({shape}{"," * (array.ndim == 1)})).astype("{dtype}")'


def _upper(array: AnyArray) -> int:
    return int(array.max(initial=0)) + 1


def torch_setup(spec: ModelSpec, sizes: Mapping[str, Scalar], module: Any, inputs: Any) -> dict[str, Any]:
    """Setup of a torch module with these example inputs, as JSON values: `setup` and `form`."""
    import torch

    from benchbench.worker.user_models import torch_module, transformers_model

    loaded = torch_module.load(spec)
    form = form_of(inputs, lambda value: isinstance(value, torch.Tensor))
    arrays = {
        name: torch_module.as_array(value) for name, value in torch_module.named_tensors(inputs).items()
    }
    imports, prefix, file = ["import torch"], "", None
    end = ".train()" if module.training else ".eval()"
    if spec.is_program:
        lines = [f"program = torch.export.load({_quoted(_path(spec))})", "model = program.module()"]
    elif spec.is_config:
        imports += ["import json", "import transformers"]
        lines = [
            f"fields = json.load(open({_quoted(_path(spec))}))",
            'config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)',
            f"model = transformers.{type(module).__name__}(config){end}",
        ]
    else:
        more, prefix = source_of(spec)
        file = import_model_file(spec)
        if {"tensorflow", "triton"} <= sys.modules.keys():
            imports.append("import triton  # before the file, which imports TensorFlow: later it would abort")
        imports += more
        name = f"{prefix}{loaded.attribute}"
        is_instance = isinstance(getattr(file, loaded.attribute), torch.nn.Module)
        lines = [f"model = {name if is_instance else call(name, sizes, loaded.model_sizes)}{end}"]
    if transformers_model.is_transformers(module) and hasattr(module.config, "use_cache"):
        lines.append("model.config.use_cache = False")
    file_inputs = getattr(file, "inputs", None)
    example = getattr(module, "example_inputs", None)
    if spec.input:
        imports.append("import numpy")
        lines += stored_inputs(spec, form, "torch.from_numpy({})")
    elif callable(file_inputs):
        lines += inputs_line(file_inputs, prefix, sizes, loaded.input_sizes)
    elif spec.is_program and form not in (ONE, TUPLE, DICT):
        lines.append(f"inputs = program.example_inputs[{int(form == DEEP_DICT)}]")
    elif example is not None and not spec.is_program and not spec.is_config:
        name = "model.example_inputs"
        lines.append(
            f"inputs = {call(name, sizes, loaded.input_sizes) if inspect.isroutine(example) else name}"
        )
    else:
        lines.append(f"inputs = {drawn(arrays, form, 'torch')}")
    if spec.file and file is not None and "Lazy" in inspect.getsource(file):
        lines.append(f"model({CALLS[form]})  # creates the parameters of lazy layers")
    return {"setup": [imports, lines], "form": form}


def stored_inputs(spec: ModelSpec, form: str, convert: str) -> list[str]:
    """Lines that read the inputs from the user's file."""
    arrays, path = input_file.read_arrays(spec.input), PurePath(spec.input)
    folder = PurePath(spec.folder)
    shown = path.relative_to(folder) if path.is_relative_to(folder) else PurePath(path.name)
    names = list(arrays)

    def read(name: str) -> str:
        text = f"arrays[{_quoted(name)}]"
        if arrays[name].dtype == "float64":
            text += '.astype("float32")'
        return convert.format(text)

    if form == ONE:
        inputs = read(names[0])
    elif form in (DICT, DEEP_DICT):
        inputs = "{" + ", ".join(f"{_quoted(name)}: {read(name)}" for name in names) + "}"
    else:
        inputs = _tuple(map(read, names))
    return [f"arrays = numpy.load({_quoted(shown.as_posix())})", f"inputs = {inputs}"]


def training_setup(
    spec: ModelSpec,
    sizes: Mapping[str, Scalar],
    module: Any,
    inputs: Any,
    objective: Any,
    targets: Any,
    optimizer: Any,
    *,
    takes_inputs: bool,
) -> dict[str, Any]:
    """Setup of a training step with these examples; `loss` is the expression of the loss of `output`.

    `objective`: of `torch_training.objective_of`. `takes_inputs`: True if the loss gets the model's inputs in
    place of targets.
    """
    import torch

    parts = torch_setup(spec, sizes, module, inputs)
    imports, lines = parts["setup"]
    prefix = "" if spec.is_config or spec.is_program else source_of(spec)[1]
    if spec.is_program:
        lines.append("model.train()")
    expression = "output.loss"
    if objective.targets is not None:
        lines.append(f"targets = {call(f'{prefix}targets', sizes, objective.target_sizes)}")
        arguments = CALLS[form_of(targets, lambda value: isinstance(value, torch.Tensor))]
        expression = f"{prefix}loss(output, {arguments.replace('inputs', 'targets')})"
    elif takes_inputs:
        expression = f"{prefix}loss(output, {CALLS[parts['form']]})"
    elif objective.loss is not None:
        expression = f"{prefix}loss(output)"
    if objective.optimizer is not None:
        lines.append(f"optimizer = {call(f'{prefix}optimizer', sizes, objective.optimizer_sizes, 'model')}")
    else:
        lines.append(f"optimizer = {_optimizer(optimizer)}")
    return {**parts, "setup": [imports, lines], "loss": expression}


def _optimizer(optimizer: Any) -> str:
    """Construction of one of torch's optimizers, with the settings that differ from its defaults."""
    kind = type(optimizer)
    parameters = inspect.signature(kind).parameters
    changed = (
        f"{name}={value!r}"
        for name, value in optimizer.defaults.items()
        if name in parameters and parameters[name].default != value and value is not None
    )
    return f"torch.optim.{kind.__name__}({', '.join(['model.parameters()', *changed])})"


def keras_setup(spec: ModelSpec, sizes: Mapping[str, Scalar], model: Any, inputs: Any) -> dict[str, Any]:
    """Setup of a Keras model with these example inputs."""
    import keras

    from benchbench.worker.user_models import keras_model

    loaded = keras_model.load(spec)
    imports, prefix, file = ["import keras"], "", None
    if spec.is_keras_file:
        lines = [f"model = keras.saving.load_model({_quoted(_path(spec))}, compile=False)"]
    else:
        more, prefix = source_of(spec)
        file = import_model_file(spec, variant=keras_model.FLOAT32)
        imports += more
        name = f"{prefix}{loaded.attribute}"
        is_model = isinstance(getattr(file, loaded.attribute), keras.Model)
        lines = [f"model = {name if is_model else call(name, sizes, loaded.model_sizes)}"]
    form = form_of(inputs, lambda value: not keras.tree.is_nested(value))
    if spec.input:
        imports.append("import numpy")
        lines += stored_inputs(spec, form, "{}")
    elif loaded.inputs:
        lines += inputs_line(loaded.inputs, prefix, sizes, loaded.input_sizes)
    else:
        imports.append("import numpy")
        lines.append(f"inputs = {drawn(keras_model.arrays_by_path(inputs), form, 'numpy')}")
    lines.append("inputs = keras.tree.map_structure(keras.ops.convert_to_tensor, inputs)")
    form = ONE if keras_model.takes_one(model) else form
    if not spec.is_keras_file and type(model).__name__ != "Functional":
        lines.append(f"model({CALLS[form]})  # creates its weights")
    return {"setup": [imports, lines], "form": form}


def onnx_setup(spec: ModelSpec, arrays: Mapping[str, AnyArray]) -> dict[str, Any]:
    """Setup of an ONNX file: its inputs by name."""
    lines = [f"inputs = {drawn(arrays, DICT, 'numpy')}"]
    if spec.input:
        lines = stored_inputs(spec, DICT, "{}")
    return {"setup": [["import numpy"], lines], "form": DICT}
