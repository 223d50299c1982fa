"""A training step of a user's torch module: its loss, the way back, an optimizer's update."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchbench.arrays import AnyArray, Array
from benchbench.backends.base import Session
from benchbench.model.case import Dtype, Scalar
from benchbench.model.own import ModelSpec
from benchbench.worker.own import torch_graph, torch_module
from benchbench.worker.own.source import BATCH, ModelMistake, array_type, in_folder, most_taps
from benchbench.worker.own.torch_objective import (
    LOSS,
    OPTIMIZER,
    made_targets,
    objective_of,
    takes_several,
)
from benchbench.worker.own.workload import (
    IMAGE_AXES,
    INPUT,
    WEIGHT,
    TorchWorkload,
    as_stored,
    load_weights,
)
from benchbench.worker.random_cache import cached_arrays
from benchbench.workloads._optimizers import optimizer_named, refuses_to_train
from benchbench.workloads.base import DeviceContext, Draw, Program, Step, Training

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays

TARGET = "target:"  # what the names of its arrays begin with, besides
RESULT_MOVES = 3  # times a parameter's bytes move: the gradient is read, the parameter read and written
SLOT_MOVES = 2  # and what the optimizer keeps of it: read and written


@dataclass(frozen=True)
class OwnTraining(TorchWorkload, Training):
    """A step of a user's own training: forward, backward, the optimizer's update.

    `drops`: whether its dropout layers drop. Not where it is verified: every engine draws other numbers.
    """

    drops: bool = True
    all_move: ClassVar[bool] = False  # a user's optimizer may move some by less than float32 can tell

    def graph_of(self) -> dict[str, Any]:
        return graph_of(self.spec, self.sizes)

    def refuses(self, dtype: Dtype) -> str:
        """What the optimizer of the table cannot keep, too."""
        return super().refuses(dtype) or refuses_to_train(self.sizes, dtype)

    def small(self) -> Self:
        return replace(self.tiny(), drops=False)

    def is_input(self, name: str) -> bool:
        return name.startswith((INPUT, TARGET))

    def input_arrays(self, draw: Draw) -> dict[str, Array]:
        """Inputs, and targets."""
        number = draw.number(INPUT)
        made = cached_arrays(
            f"targets {number} of {self!r}",
            lambda: made_targets(self.spec, self.sizes, number)[0],
        )
        targets = {f"{TARGET}{name}": as_stored(array, draw) for name, array in made.items()}
        return {**super().input_arrays(draw), **targets}

    def batched(self, arrays: Arrays) -> tuple[list[str], int]:
        """Those that have a row for each of `batch` samples; none where nobody says what a sample is."""
        batch = self.sizes.get(BATCH)
        rows = [name for name, each in arrays.items() if self.is_input(name) and each.shape[:1] == (batch,)]
        return rows, batch if rows and type(batch) is int else 0

    def weight_of(self, arrays: Mapping[str, AnyArray], name: str) -> AnyArray:
        return arrays[f"{WEIGHT}{name}"]

    def steps(self, arrays: Arrays, ops: Any = None) -> Iterator[Step]:
        """None: the model itself in float64 is the reference, see `training_reference.py`."""
        raise NotImplementedError

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """The step as torch's users write it: zero_grad, forward, backward, the optimizer's step."""
        import torch

        plain = self.module(arrays, context.device, context.dtype).train()
        module, given, layout = self.laid_out(context, arrays, plain)
        if not self.drops:
            without_dropout(module)
        learnt = learnt_parameters(module)
        update = optimizer_of(self.spec, self.sizes, module, fused=isinstance(context, Session))
        initial = deepcopy(update.state_dict())
        loss_of = loss_function(self.spec, self.sizes, module, context.device, context.dtype)
        names = [name for name in arrays if self.is_input(name)]
        kind, mixed = context.device.type, context.compute is not None

        def step(*inputs: Any) -> Any:
            update.zero_grad(set_to_none=True)
            with torch.autocast(kind, context.compute, enabled=mixed):
                loss = loss_of(dict(zip(names, inputs, strict=True)))
            loss.backward()
            update.step()
            return loss.detach()

        def restart(arrays: Arrays) -> tuple[Any, ...]:
            load_weights(module, arrays)
            restart_optimizer(update, initial, zeros=objective_of(self.spec).optimizer is None)
            return ()

        return Program(
            step,
            given(arrays),
            parameters=lambda: learnt,
            gradients=lambda: {
                name: torch.zeros_like(each) if each.grad is None else each.grad
                for name, each in learnt.items()
            },
            last_gradient="last gradient",
            inputs_of=given,
            restart=restart,
            seed=torch.manual_seed if self.drops and self.graph["drops"] else None,
            layout=layout,
        )


def loss_function(
    spec: ModelSpec, sizes: Mapping[str, Scalar], module: Any, device: Any, dtype: Any
) -> Callable[[Mapping[str, Any]], Any]:
    """What gives the loss of tensors by the names of their arrays; plain enough for a compiler to follow."""
    import torch

    objective = objective_of(spec)
    arguments = torch_module.made_inputs(spec, sizes, module, 0)[1]
    of_targets = made_targets(spec, sizes, 0)[1]
    judge, has_targets = objective.loss, objective.targets is not None
    if isinstance(judge, torch.nn.Module):
        judge = deepcopy(judge).to(device=device, dtype=dtype)
    takes_inputs = judge is not None and not has_targets and takes_several(judge)

    def loss(tensors: Mapping[str, Any]) -> Any:
        inputs = {name.removeprefix(INPUT): each for name, each in tensors.items() if name.startswith(INPUT)}
        own, named = arguments(inputs)
        output = module(*own, **named)
        if judge is None:
            return output[LOSS] if isinstance(output, Mapping) else output.loss
        if takes_inputs:
            return judge(output, *own, **named)
        targets = {
            name.removeprefix(TARGET): each for name, each in tensors.items() if name.startswith(TARGET)
        }
        first, rest = of_targets(targets)
        return judge(output, *first, **rest)

    return loss


def learnt_parameters(module: Any) -> dict[str, Any]:
    """The parameters that training may move, by name."""
    return {name: each for name, each in module.named_parameters() if each.requires_grad}


def optimizer_of(spec: ModelSpec, sizes: Mapping[str, Scalar], module: Any, *, fused: bool) -> Any:
    """The optimizer that the file makes, else that of the table. Raises ModelMistake for another thing."""
    import torch

    objective = objective_of(spec)
    if objective.optimizer is None:
        parameters = list(learnt_parameters(module).values())
        return optimizer_named(str(sizes[OPTIMIZER])).torch(parameters, fused=fused)
    own = {name: value for name, value in sizes.items() if name in objective.sizes_of_optimizer}
    with in_folder(spec):
        made = objective.optimizer(module, **own)
    if not isinstance(made, torch.optim.Optimizer):
        raise ModelMistake(
            f"{spec.text}: optimizer(model) gives no torch.optim.Optimizer, but {type(made).__name__}.",
            "Return one: torch.optim.AdamW(model.parameters(), lr=1e-3).",
        )
    return made


def restart_optimizer(update: Any, initial: Mapping[str, Any], *, zeros: bool) -> None:
    """Put the optimizer back to what it was before its first step.

    `zeros`: what it keeps begins at zero, and stays where it is, as a CUDA graph needs.
    """
    import torch

    if not zeros:
        update.load_state_dict(deepcopy(initial))
        return
    with torch.no_grad():
        for value in chain.from_iterable(kept.values() for kept in update.state.values()):
            if torch.is_tensor(value):
                value.zero_()


def without_dropout(module: Any) -> bool:
    """Have nothing dropped from here on; whether anything would have been.

    Dropout layers, those of attention and of recurrent layers, and whatever a module calls its dropout; not
    the numbers of a function that is called with its own.
    """
    found = False
    for owner in chain.from_iterable((each, getattr(each, "config", None)) for each in module.modules()):
        for name, value in list(vars(owner).items()) if hasattr(owner, "__dict__") else ():
            kind = type(owner).__name__.lower()
            drops = "drop" in name or (name == "p" and ("drop" in kind or "depth" in kind))
            if drops and isinstance(value, float) and value > 0:
                setattr(owner, name, 0.0)
                found = True
    return found


def graph_of(spec: ModelSpec, sizes: Mapping[str, Scalar]) -> dict[str, Any]:
    """The facts of a training step at these sizes, of values that JSON has.

    `digest`: as of the outputs, and of the operators of the loss and what the optimizer is told. `flops`: of
    the way there and back. `drops`: whether anything is dropped.
    """
    import torch

    module = torch_module.built(spec, sizes).train()
    inputs, _ = torch_module.made_inputs(spec, sizes, module, 0)
    targets, _ = made_targets(spec, sizes, 0)
    arrays = {f"{INPUT}{name}": array for name, array in inputs.items()}
    arrays |= {f"{TARGET}{name}": array for name, array in targets.items()}
    tensors = torch_module.tensors_of(module)
    shapes = [[name, list(each.shape)] for name, each in tensors.items()]
    counted = sum(each.numel() for each in module.parameters())
    constants = len(torch_graph.constant_parameters(module))
    try:
        operators, flops, kept, told = _traced(spec, sizes, module.to("meta"), arrays, "meta")
    except Exception:  # noqa: BLE001 - a module may need its numbers, and fail in any way without
        own = torch_module.built(spec, sizes).train()
        operators, flops, kept, told = _traced(spec, sizes, own, arrays, "cpu")
    moved = [(array.size, torch.from_numpy(array).dtype) for array in arrays.values()]
    moved += [(each.numel(), each.dtype) for each in tensors.values()]
    learnt = sum(each.numel() for each in learnt_parameters(module).values())
    floats = sum(size for size, dtype in moved if dtype.is_floating_point)
    return {
        "digest": sha256(json.dumps([shapes, operators, told]).encode()).hexdigest()[: torch_graph.DIGITS],
        "flops": int(flops),
        "taps": most_taps(shape for _, shape in shapes),
        "parameters": counted,
        "constants": constants,
        "floats": floats + RESULT_MOVES * learnt + SLOT_MOVES * kept,
        "other_bytes": sum(size * dtype.itemsize for size, dtype in moved if not dtype.is_floating_point),
        "takes_images": any(
            array.ndim == IMAGE_AXES and array.dtype.kind == "f" for array in inputs.values()
        ),
        "takes": [array_type(array.dtype, array.shape) for array in arrays.values()],
        "gives": [LOSS],
        "drops": without_dropout(module),
    }


def _traced(
    spec: ModelSpec, sizes: Mapping[str, Scalar], module: Any, arrays: Mapping[str, AnyArray], device: str
) -> tuple[Any, int, int, Any]:
    """Operators of the way there, FLOPs of both ways, elements that the optimizer keeps, what it is told."""
    import torch

    from benchbench.workloads._reference.torch_rounding import plain_operators

    operators: list[Any] = []
    compute = loss_function(spec, sizes, module, torch.device(device), torch.float32)
    update = optimizer_of(spec, sizes, module, fused=False)
    tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
    with plain_operators(), torch_graph.flop_counter() as counter:
        with torch_graph.recording(operators):
            loss = compute(tensors)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            shown = list(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise ModelMistake(f"{spec.text}: its loss is no number, but {shown}.", "Return its mean.")
        loss.backward()
    update.step()
    learnt = {id(each) for each in module.parameters()}
    kept = sum(
        value.numel()
        for each, state in update.state.items()
        for value in state.values()
        if id(each) in learnt and torch.is_tensor(value) and value.shape == each.shape
    )
    told = [type(update).__name__, *(_plain(group) for group in update.param_groups)]
    return operators, counter.get_total_flops(), kept, told


def _plain(group: Mapping[str, Any]) -> list[Any]:
    """What a group of parameters is moved by, and how many they are; not by which kernel.

    What is off is left out, as another version of torch may not know it.
    """
    kernels = ("params", "fused", "foreach", "capturable", "differentiable")
    own = [[name, str(value)] for name, value in sorted(group.items()) if name not in kernels and value]
    return [len(group["params"]), own]
