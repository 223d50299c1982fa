"""What a user's torch module computes, without its numbers: operators, work, the shapes of its outputs.

Found on torch's meta device, which has shapes and no memory; on the CPU where a module needs numbers to know
its way.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Self

from benchbench.arrays import AnyArray
from benchbench.model.case import Scalar
from benchbench.model.own import ModelSpec
from benchbench.worker.own import torch_module
from benchbench.worker.own.source import ModelMistake, array_type, most_taps

# Operators that move or show numbers and compute none: how many there are differs between torch's versions.
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
DIGITS = 8  # of the digest


def graph_of(spec: ModelSpec, params: Mapping[str, Scalar]) -> dict[str, Any]:
    """The facts of a model at these parameters, of values that JSON has.

    `digest`: of names and shapes of its tensors and of its operators, in order. `outputs`: shapes by name,
    `places`: where each is in what the model gives. `floats`, `other_bytes`: of parameters, inputs, outputs.
    `takes`, `gives`: the types of its inputs and outputs, in order.
    """
    import torch

    module = torch_module.built(spec, params)
    arrays, arguments = torch_module.made_inputs(spec, params, module, 0)
    tensors = {name: (each.numel(), each.dtype) for name, each in torch_module.tensors_of(module).items()}
    shapes = [[name, list(each.shape)] for name, each in torch_module.tensors_of(module).items()]
    counted = sum(each.numel() for each in module.parameters())
    constants = len(constant_parameters(module))
    try:
        operators, flops, output = _traced(module.to("meta"), arrays, arguments, "meta")
    except Exception:  # noqa: BLE001 - a module may need its numbers, and fail in any way without
        operators, flops, output = _traced(torch_module.built(spec, params), arrays, arguments, "cpu")
    outputs = torch_module.outputs_of(output)
    if not outputs:
        raise ModelMistake(f"{spec.text} gives no tensor.", "Return one, or a tuple or dict of them.")
    moved = [*tensors.values(), *((each.numel(), each.dtype) for each in outputs.values())]
    moved += [(array.size, torch.from_numpy(array).dtype) for array in arrays.values()]
    text = json.dumps([shapes, operators])
    return {
        "digest": sha256(text.encode()).hexdigest()[:DIGITS],
        "flops": int(flops),
        "taps": most_taps(shape for _, shape in shapes),
        "parameters": counted,
        "constants": constants,
        "floats": sum(size for size, dtype in moved if dtype.is_floating_point),
        "other_bytes": sum(size * dtype.itemsize for size, dtype in moved if not dtype.is_floating_point),
        "outputs": {name: list(each.shape) for name, each in outputs.items()},
        "takes": [array_type(array.dtype, array.shape) for array in arrays.values()],
        "gives": [array_type(each.dtype, each.shape) for each in outputs.values()],
        "takes_images": any(array.ndim == 4 and array.dtype.kind == "f" for array in arrays.values()),
        "integers": [name for name, each in outputs.items() if not each.is_floating_point()],
        "places": torch_module.places_of_outputs(output),
    }


def _traced(module: Any, arrays: Mapping[str, AnyArray], arguments: Any, device: str) -> tuple[Any, int, Any]:
    """The operators with what they are told besides tensors, their FLOPs, and what the module gave."""
    import torch

    from benchbench.workloads._reference.torch_rounding import plain_operators

    operators: list[Any] = []
    tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
    own, named = arguments(tensors)
    with torch.no_grad(), plain_operators(), flop_counter() as counter, recording(operators):
        output = module(*own, **named)
    return operators, counter.get_total_flops(), output


class WholeModel:
    """A stand-in for torch's tracker of modules: FLOPs are counted of the whole model alone.

    That tracker raises where a view of a parameter is passed to a submodule under `no_grad`: it asks for the
    view's gradient function, and there is none.
    """

    parents = ("Global",)  # the name under which torch's counter keeps the total

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End nothing."""


def flop_counter() -> Any:
    """torch's counter of FLOPs, with a formula for products by groups, which it lacks."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from benchbench.workloads._reference.torch_rounding import GROUPED

    known = getattr(torch.ops.aten, GROUPED, None)
    counter = FlopCounterMode(display=False, custom_mapping={known: flops_of_groups} if known else None)
    counter.mod_tracker = WholeModel()
    return counter


def flops_of_groups(left: Sequence[int], right: Sequence[int], *_: Any, **__: Any) -> int:
    """Of shapes. Of a matrix and a stack, each row or column is multiplied by one matrix of the stack."""
    stacks = left[0] if len(left) == len(right) == 3 else 1
    return 2 * stacks * left[-2] * left[-1] * right[-1]


def recording(operators: list[Any]) -> Any:
    """A context in which every operator is added to the list, with what it is told besides tensors."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recorder(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func.overloadpacket.__name__
            if not getattr(func, "is_view", False) and name.rstrip("_") not in MOVES:
                operators.append([name, _told([*args, *(kwargs or {}).values()])])
            return func(*args, **(kwargs or {}))

    return Recorder()


def _told(values: Any) -> list[Any]:
    """Numbers and words among an operator's arguments; of a list of them all, of anything else nothing."""
    found: list[Any] = []
    for each in values:
        if isinstance(each, bool | int | str):
            found.append(each)
        elif isinstance(each, float):
            found.append(each if math.isfinite(each) else str(each))
        elif isinstance(each, list | tuple):
            found.append(_told(each))
    return found


def constant_parameters(module: Any) -> list[str]:
    """The names of floating parameters whose elements are all equal, as biases are when they are new."""
    return [
        name
        for name, each in module.named_parameters()
        if each.is_floating_point() and each.numel() and bool((each == each.reshape(-1)[0]).all())
    ]
