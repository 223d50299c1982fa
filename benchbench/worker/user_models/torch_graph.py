"""Computation of a user's torch module: operators, cost and output shapes.

The module is traced on torch's meta device, which has shapes and no memory, or on the CPU if it branches on
values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Self

from benchbench.arrays import AnyArray
from benchbench.model.case import Scalar
from benchbench.model.user_model import ModelSpec
from benchbench.worker.user_models import torch_module, transformers_model, usage
from benchbench.worker.user_models.source import ModelMistake, array_type, most_taps

# Operators that move numbers and compute nothing. Their number differs between versions of torch.
MOVES = frozenset(
    (
        "clone",
        "copy",
        "contiguous",
        "detach",
        "lift_fresh",
        "to",
        "_to_copy",
        "_unsafe_view",
        "alias",
        "empty",
    )
)
DIGEST_DIGITS = 8


def graph_of(spec: ModelSpec, params: Mapping[str, Scalar]) -> dict[str, Any]:
    """Facts of a model at these parameters, as JSON values.

    `digest` covers the names and shapes of the tensors and the operators in order. `outputs` has shapes by
    name, and `places` the path of each output. `floats` and `other_bytes` are the numbers of floats and of
    bytes of other types in parameters, inputs and outputs. `takes` and `gives` are the types of inputs and
    outputs in order.
    """
    import torch

    module = torch_module.build(spec, params)
    arrays, arguments = torch_module.make_inputs(spec, params, module, 0)
    tensors = {
        name: (tensor.numel(), tensor.dtype) for name, tensor in torch_module.tensors_of(module).items()
    }
    shapes = [[name, list(tensor.shape)] for name, tensor in torch_module.tensors_of(module).items()]
    parameter_count = sum(parameter.numel() for parameter in module.parameters())
    constants = len(constant_parameters(module))
    generates = transformers_model.is_language_model(module)
    unread, setup = 0, {}
    if spec.step:
        unread = transformers_model.unread_floats(module, arrays[transformers_model.TOKENS].size)
    else:
        setup = usage.torch_setup(spec, params, module, torch_module.example_inputs(spec, params, module, 0))
    try:
        operators, flops, output = _trace(module.to("meta"), arrays, arguments, "meta")
    except Exception:  # noqa: BLE001 - modules that branch on values raise anything on the meta device
        operators, flops, output = _trace(torch_module.build(spec, params), arrays, arguments, "cpu")
    outputs = torch_module.outputs_of(output)
    if not outputs:
        raise ModelMistake(f"{spec.text} returns no tensor.", "Return one, or a tuple or dict of them.")
    tensors_moved = [*tensors.values(), *((output_.numel(), output_.dtype) for output_ in outputs.values())]
    tensors_moved += [(array.size, torch.from_numpy(array).dtype) for array in arrays.values()]
    text = json.dumps([shapes, operators])
    return {
        "digest": sha256(text.encode()).hexdigest()[:DIGEST_DIGITS],
        "flops": int(flops),
        "taps": most_taps(shape for _, shape in shapes),
        "parameters": parameter_count,
        "weights_dtype": weights_dtype(module),
        "constants": constants,
        "floats": sum(size for size, dtype in tensors_moved if dtype.is_floating_point) - unread,
        "other_bytes": sum(
            size * dtype.itemsize for size, dtype in tensors_moved if not dtype.is_floating_point
        ),
        "outputs": {name: list(output_.shape) for name, output_ in outputs.items()},
        "takes": [array_type(array.dtype, array.shape) for array in arrays.values()],
        "gives": [array_type(output_.dtype, output_.shape) for output_ in outputs.values()],
        "takes_images": not spec.step
        and any(array.ndim == 4 and array.dtype.kind == "f" for array in arrays.values()),
        "generates": generates,
        "mixes_experts": bool(transformers_model.models_of_experts(module)),
        "product_weights": product_weights(module),
        "integers": [name for name, output_ in outputs.items() if not output_.is_floating_point()],
        "places": torch_module.output_paths(output),
        **setup,
    }


def _trace(module: Any, arrays: Mapping[str, AnyArray], arguments: Any, device: str) -> tuple[Any, int, Any]:
    """Return (operators with their arguments other than tensors, FLOPs, output)."""
    import torch

    from benchbench.workloads._reference.torch_rounding import plain_operators

    operators: list[Any] = []
    tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
    args, kwargs = arguments(tensors)
    with torch.no_grad(), plain_operators(), flop_counter() as counter, record_operators(operators):
        output = module(*args, **kwargs)
    return operators, counter.get_total_flops(), output


class WholeModel:
    """Stand-in for torch's module tracker, so that FLOPs are counted only for the whole model.

    The tracker raises if a view of a parameter is passed to a submodule under `no_grad`, since it asks for
    the view's gradient function and there is none.
    """

    parents = ("Global",)  # torch's counter stores the total under this name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""


def flop_counter() -> Any:
    """torch's counter of FLOPs, with a formula for grouped products, which it lacks."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from benchbench.workloads._reference.torch_rounding import GROUPED

    operator = getattr(torch.ops.aten, GROUPED, None)
    counter = FlopCounterMode(display=False, custom_mapping={operator: flops_of_groups} if operator else None)
    counter.mod_tracker = WholeModel()
    return counter


def flops_of_groups(left: Sequence[int], right: Sequence[int], *_: Any, **__: Any) -> int:
    """FLOPs of a grouped product of these shapes.

    Of a matrix and a stack, each row or column is multiplied by one matrix of the stack.
    """
    stacks = left[0] if len(left) == len(right) == 3 else 1
    return 2 * stacks * left[-2] * left[-1] * right[-1]


def record_operators(operators: list[Any]) -> Any:
    """Return a context that appends the name and plain arguments of every operator to the list."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recorder(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func.overloadpacket.__name__
            if not getattr(func, "is_view", False) and name.rstrip("_") not in MOVES:
                operators.append([name, _plain_arguments([*args, *(kwargs or {}).values()])])
            return func(*args, **(kwargs or {}))

    return Recorder()


def _plain_arguments(values: Any) -> list[Any]:
    """Numbers and strings among an operator's arguments, recursively in lists."""
    plain: list[Any] = []
    for value in values:
        if isinstance(value, bool | int | str):
            plain.append(value)
        elif isinstance(value, float):
            plain.append(value if math.isfinite(value) else str(value))
        elif isinstance(value, list | tuple):
            plain.append(_plain_arguments(value))
    return plain


def product_weights(module: Any) -> int:
    """Number of parameters that are matrices of products, each once."""
    from torch import nn

    matrices = {
        id(part.weight): part.weight
        for part in module.modules()
        if isinstance(part, nn.Linear) or type(part).__name__ == "Conv1D"  # transformers' name, in GPT-2
    }
    return sum(weight.numel() for weight in matrices.values())


def weights_dtype(module: Any) -> str:
    """Dtype of the float weights of a new module; empty for the usual float32, and for several."""
    dtypes = {tensor.dtype for tensor in module.parameters() if tensor.is_floating_point()}
    name = str(dtypes.pop()).removeprefix("torch.") if len(dtypes) == 1 else ""
    return "" if name == "float32" else name


def constant_parameters(module: Any) -> list[str]:
    """Names of float parameters whose elements are all equal, such as new biases."""
    import torch

    return [
        name
        for name, parameter in module.named_parameters()
        if parameter.layout is torch.strided
        and parameter.is_floating_point()
        and parameter.numel()
        and bool((parameter == parameter.reshape(-1)[0]).all())
    ]
