"""Lines of code that run a user's model on an engine as a case did, from the user's `model` and `inputs`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from benchbench.model.case import AMP, Case, Dtype, Phase
from benchbench.model.user_model import JAX, KERAS, ONNX, TORCH, TRAINING, ModelSpec, relative

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
IMPORTS = {TORCH: "import torch", JAX: "import jax"}  # by kind of model; the engine's lines import the others
NAMES = {  # by kind of model: the names that the code takes from the user's program
    TORCH: "model (in evaluation mode) and inputs",
    KERAS: "model and inputs",
    JAX: "model(params, …), params and inputs",
    ONNX: "inputs, arrays by name",
}
PREAMBLE = ("import ", "os.environ")  # lines that precede the import of the model's file
PROVIDERS = {"cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}


def usage_code(backend: Backend, spec: ModelSpec, graph: Mapping[str, Any], case: Case) -> str:
    """Code that runs the model as in this case, or "" if the backend has none for its mode.

    A comment says which names the user's program must define. `graph`: the facts of the model.
    """
    kind = TRAINING if case.phase is Phase.TRAIN else spec.kind
    engine = backend.model_code.get((kind, case.mode))
    if engine is None or spec.step:  # a step of a language model is not called by itself
        return ""
    engine = engine.replace("<HINT>", backend.code_hints.get(case.dtype or Dtype.FLOAT32, ""))
    filled = _filled(engine, spec, graph["form"], case)
    preamble = [line for line in filled if line.startswith(PREAMBLE)]
    if spec.kind in IMPORTS:
        preamble.insert(0, IMPORTS[spec.kind])
    lines = [f"# {NAMES[spec.kind]}: as in {relative(spec)}"]
    dtype = str((case.dtype or Dtype.FLOAT32).storage)
    if spec.kind != ONNX and dtype != (graph.get("weights_dtype") or str(Dtype.FLOAT32)):
        has_floats = any(text.startswith("float") for text in graph["takes"])
        lines += _conversion(spec.kind, graph["form"], dtype, has_floats=has_floats)
    if case.dtype is Dtype.TF32 and spec.kind == TORCH:
        lines.append('torch.set_float32_matmul_precision("high")')
    if case.phase is Phase.TRAIN:
        lines.append(f"# step(): {_training_step(case)} of model; returns the loss")
    rest = [line for line in filled if line not in preamble]
    return "\n".join([*dict.fromkeys(preamble), *lines, *rest])


def _training_step(case: Case) -> str:
    """Description of the user's training step in the case's dtype."""
    forward = "forward"
    if case.dtype in AMP:
        assert case.dtype
        kind = case.device.partition(":")[0]
        forward = f'forward under torch.autocast("{kind}", torch.{case.dtype.compute})'
    return f"zero_grad, {forward}, backward, update"


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
        "FILE": relative(spec).partition(":")[0],
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


def _conversion(kind: str, form: str, dtype: str, *, has_floats: bool) -> list[str]:
    """Lines that make the model use `dtype`."""
    if kind == KERAS:
        return [f'keras.config.set_dtype_policy("{dtype}")  # before the model is made']
    if kind == JAX:
        convert = f'x.astype("{dtype}") if jax.numpy.issubdtype(x.dtype, jax.numpy.floating) else x'
        wide = ['jax.config.update("jax_enable_x64", True)'] if dtype == "float64" else []
        return [*wide, f"params, inputs = jax.tree.map(lambda x: {convert}, (params, inputs))"]
    convert = f"{{}}.to(torch.{dtype})" + " if {}.is_floating_point() else {}" * (form != ONE)
    inputs = [_mapped(form, convert)] if has_floats else []
    return [f"model = model.to(torch.{dtype})", *inputs]


def form_of(inputs: Any, is_leaf: Callable[[Any], bool]) -> str:
    """Structure of a model's inputs; `is_leaf` is True for a tensor or array."""
    if isinstance(inputs, Mapping):
        return DICT if all(map(is_leaf, inputs.values())) else DEEP_DICT
    if isinstance(inputs, tuple | list):
        return TUPLE if all(map(is_leaf, inputs)) else DEEP_TUPLE
    return ONE
