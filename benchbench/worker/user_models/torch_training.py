"""Training step of a user's torch module: forward pass, backward pass and optimizer update."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchbench.arrays import AnyArray, Array
from benchbench.backends.base import Session
from benchbench.model.case import Dtype, Scalar
from benchbench.model.user_model import ModelSpec
from benchbench.worker.random_cache import cached_arrays
from benchbench.worker.user_models import torch_graph, torch_module, usage
from benchbench.worker.user_models.source import (
    BATCH,
    ModelMistake,
    array_type,
    default_sizes,
    distinct_inputs,
    import_model_file,
    in_model_folder,
    most_taps,
    seed_everything,
)
from benchbench.worker.user_models.torch_module import Arguments, arguments_like, as_array, named_tensors
from benchbench.worker.user_models.workload import (
    IMAGE_AXES,
    INPUT,
    WEIGHT,
    TorchWorkload,
    as_stored,
    load_weights,
)
from benchbench.workloads._optimizers import optimizer_named, refuses_to_train
from benchbench.workloads.base import DeviceContext, Draw, Program, Step, Training

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays

LOSS, TARGETS, OPTIMIZER = "loss", "targets", "optimizer"  # names in the user's file
DEFAULT_OPTIMIZER = "momentum"  # of `_optimizers.py`; its updates are proportional to the gradients


@dataclass(frozen=True, slots=True)
class Objective:
    """Functions for the loss of the model's output, for its targets, and for the optimizer of a model.

    Without `loss`, the model's own output of that name is used. Without `optimizer`, one of `_optimizers.py`
    is used.
    """

    loss: Callable[..., Any] | None = None
    targets: Callable[..., Any] | None = None
    target_sizes: Mapping[str, Scalar] = field(default_factory=dict)
    optimizer: Callable[..., Any] | None = None
    optimizer_sizes: Mapping[str, Scalar] = field(default_factory=dict)

    def sizes(self, model_sizes: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """All parameters of a training step with defaults: those of the model and those of training."""
        training_sizes = {**self.target_sizes, **self.optimizer_sizes}
        return {
            **model_sizes,
            **{name: value for name, value in training_sizes.items() if name not in model_sizes},
        }


@cache
def objective_of(spec: ModelSpec) -> Objective:
    """The objective in the user's file. Raises ModelMistake, and any exception of the user's file."""
    if spec.is_config:
        return objective_in({})
    with in_model_folder(spec):
        return objective_in(vars(import_model_file(spec)))


def objective_in(names: Mapping[str, Any]) -> Objective:
    """The objective defined by these names of a module. Raises ModelMistake."""
    loss, targets, optimizer = (names.get(name) for name in (LOSS, TARGETS, OPTIMIZER))
    if not callable(loss):
        loss = None
    if loss and optimizer is not None and not inspect.isroutine(optimizer):
        raise ModelMistake(
            "optimizer is not a function.",
            "def optimizer(model):\n    return torch.optim.AdamW(model.parameters(), lr=1e-3)",
        )
    optimizer_factory = optimizer if inspect.isroutine(optimizer) else None
    model_parameter = list(inspect.signature(optimizer_factory).parameters)[:1] if optimizer_factory else []
    return Objective(
        loss=loss,
        targets=targets if callable(targets) else None,
        target_sizes=default_sizes(targets, TARGETS) if callable(targets) else {},
        optimizer=optimizer_factory,
        optimizer_sizes=default_sizes(optimizer_factory, OPTIMIZER, model_parameter)
        if optimizer_factory
        else {OPTIMIZER: DEFAULT_OPTIMIZER},
    )


def make_targets(
    spec: ModelSpec, params: Mapping[str, Scalar], number: int
) -> tuple[dict[str, AnyArray], Arguments]:
    """Return the targets as arrays by path, and a function that makes arguments from tensors.

    Both are empty without targets. Each number has its own seed.
    """
    if objective_of(spec).targets is None:
        return {}, lambda _: ((), {})

    def arrays_of(targets: Any) -> dict[str, AnyArray]:
        return {name: as_array(tensor) for name, tensor in named_tensors(targets).items()}

    targets = _draw_targets(spec, params, number)
    arrays = arrays_of(targets)
    if number:
        arrays = dict(distinct_inputs(arrays_of(_draw_targets(spec, params, 0)), arrays, number))
    return arrays, arguments_like(targets)


def _draw_targets(spec: ModelSpec, params: Mapping[str, Scalar], number: int) -> Any:
    """The result of the user's `targets`, drawn with the seed of this number; None without targets."""
    objective = objective_of(spec)
    if objective.targets is None:
        return None
    with in_model_folder(spec):
        seed_everything(number)
        return objective.targets(**{name: params[name] for name in objective.target_sizes if name in params})


def _takes_inputs(objective: Objective) -> bool:
    """True if the loss gets the model's inputs, since it needs more than the output and has no targets."""
    loss, has_targets = objective.loss, objective.targets is not None
    return loss is not None and not has_targets and takes_several_arguments(loss)


def takes_several_arguments(function: Any) -> bool:
    """True if the function needs more than one positional argument."""
    call = function.forward if hasattr(function, "forward") else function
    required = [
        parameter
        for parameter in inspect.signature(call).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return len(required) > 1


TARGET = "target:"  # prefix of array names
RESULT_MOVES = 3  # transfers per parameter: the gradient is read, the parameter read and written
SLOT_MOVES = 2  # transfers per element of optimizer state: read and written


@dataclass(frozen=True)
class ModelTraining(TorchWorkload, Training):
    """A step of a user's training: forward pass, backward pass, and optimizer update.

    Attributes
    ----------
    drops : bool
        Whether dropout is active. It is off for verification, since every engine draws other numbers.

    """

    drops: bool = True
    # A user's optimizer may change some parameters by less than float32 resolves.
    all_move: ClassVar[bool] = False

    def graph_of(self) -> dict[str, Any]:
        return graph_of(self.spec, self.sizes)

    def refuses(self, dtype: Dtype) -> str:
        """Reason why the step cannot run in the dtype, including limits of the default optimizer."""
        return super().refuses(dtype) or self.lacks_products_for(dtype) or refuses_to_train(self.sizes, dtype)

    def small(self) -> Self:
        return replace(self.tiny(), drops=False)

    def is_input(self, name: str) -> bool:
        return name.startswith((INPUT, TARGET))

    def input_arrays(self, draw: Draw) -> dict[str, Array]:
        """Inputs and targets."""
        number = draw.number(INPUT)
        drawn = cached_arrays(
            f"targets {number} of {self!r}",
            lambda: make_targets(self.spec, self.sizes, number)[0],
        )
        targets = {f"{TARGET}{name}": as_stored(array, draw) for name, array in drawn.items()}
        return {**super().input_arrays(draw), **targets}

    def batched(self, arrays: Arrays) -> tuple[list[str], int]:
        """Return the names of inputs with a row per sample, and the batch size; ([], 0) without a batch."""
        batch = self.sizes.get(BATCH)
        rows = [name for name, array in arrays.items() if self.is_input(name) and array.shape[:1] == (batch,)]
        return rows, batch if rows and type(batch) is int else 0

    def inputs_apart(self, names: Collection[str]) -> list[list[str]]:
        targets = [name for name in names if name.startswith(TARGET)]
        inputs = [name for name in names if name not in targets]
        return [group for group in (inputs, targets) if group]

    def weight_of(self, arrays: Mapping[str, AnyArray], name: str) -> AnyArray:
        return arrays[f"{WEIGHT}{name}"]

    def steps(self, arrays: Arrays, ops: Any = None) -> Iterator[Step]:
        """Not used: the reference is computed in `training_reference.py`."""
        raise NotImplementedError

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Program of a usual torch training step: zero_grad, forward, backward, step."""
        import torch

        unplaced_module = self.module(arrays, context.device, context.dtype).train()
        module, make_inputs, layout = self.with_layout(context, arrays, unplaced_module)
        if not self.drops:
            disable_dropout(module)
        if not isinstance(context, Session):  # the reference
            case_dtype: Dtype = getattr(context, "case_dtype", Dtype.FLOAT32)
            if case_dtype is not Dtype.FLOAT64:
                torch_module.fix_default_eps(module)
            for layer in sparse_layers(module):  # few operators of the reference accept sparse gradients
                layer.sparse = False
        trainable = trainable_parameters(module)
        buffer_names = {name for name, _ in module.named_buffers()}
        buffers = {  # such as the statistics of batch norms
            name: tensor
            for name, tensor in torch_module.tensors_of(module).items()
            if name in buffer_names and tensor.is_floating_point()
        }
        optimizer = optimizer_of(self.spec, self.sizes, module, fused=isinstance(context, Session))
        initial = deepcopy(optimizer.state_dict())
        loss_of = loss_function(self.spec, self.sizes, module, context.device, context.dtype)
        names = [name for name in arrays if self.is_input(name)]
        kind, mixed = context.device.type, context.compute is not None

        def step(*inputs: Any) -> Any:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(kind, context.compute, enabled=mixed):
                loss = loss_of(dict(zip(names, inputs, strict=True)))
            loss.backward()
            optimizer.step()
            return loss.detach()

        def restart(arrays: Arrays) -> tuple[Any, ...]:
            load_weights(module, arrays)
            restart_optimizer(optimizer, initial, zeros=objective_of(self.spec).optimizer is None)
            return ()

        return Program(
            step,
            make_inputs(arrays),
            parameters=lambda: {**trainable, **buffers},
            gradients=lambda: {
                name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.to_dense()
                for name, parameter in trainable.items()
            },
            last_gradient="last gradient",
            inputs_of=make_inputs,
            restart=restart,
            seed=torch.manual_seed if self.drops and self.graph["drops"] else None,
            layout=layout,
        )


def loss_function(
    spec: ModelSpec, sizes: Mapping[str, Scalar], module: Any, device: Any, dtype: Any
) -> Callable[[Mapping[str, Any]], Any]:
    """Return a function that computes the loss from tensors by name.

    It is simple enough for a compiler to trace.
    """
    import torch

    objective = objective_of(spec)
    arguments = torch_module.make_inputs(spec, sizes, module, 0)[1]
    target_arguments = make_targets(spec, sizes, 0)[1]
    criterion = objective.loss
    if isinstance(criterion, torch.nn.Module):
        criterion = deepcopy(criterion).to(device=device, dtype=dtype)
    takes_inputs = _takes_inputs(objective)

    def loss(tensors: Mapping[str, Any]) -> Any:
        inputs = {
            name.removeprefix(INPUT): tensor for name, tensor in tensors.items() if name.startswith(INPUT)
        }
        args, kwargs = arguments(inputs)
        output = module(*args, **kwargs)
        if criterion is None:
            return output[LOSS] if isinstance(output, Mapping) else output.loss
        if takes_inputs:
            return criterion(output, *args, **kwargs)
        targets = {
            name.removeprefix(TARGET): tensor for name, tensor in tensors.items() if name.startswith(TARGET)
        }
        target_args, target_kwargs = target_arguments(targets)
        return criterion(output, *target_args, **target_kwargs)

    return loss


def trainable_parameters(module: Any) -> dict[str, Any]:
    """Parameters that require a gradient, by name."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def sparse_layers(module: Any) -> list[Any]:
    """Layers whose weights get sparse gradients, such as `Embedding(sparse=True)`."""
    return [layer for layer in module.modules() if getattr(layer, "sparse", False) is True]


def optimizer_of(spec: ModelSpec, sizes: Mapping[str, Scalar], module: Any, *, fused: bool) -> Any:
    """The optimizer that the user's file creates, or the default one.

    torch's fused optimizers accept no sparse gradients, so a module with any has the plain one.

    Raises ModelMistake if the file creates another object.
    """
    import torch

    objective = objective_of(spec)
    if objective.optimizer is None:
        parameters = list(trainable_parameters(module).values())
        fused = fused and not sparse_layers(module)
        return optimizer_named(str(sizes[OPTIMIZER])).torch(parameters, fused=fused)
    optimizer_sizes = {name: value for name, value in sizes.items() if name in objective.optimizer_sizes}
    with in_model_folder(spec):
        optimizer = objective.optimizer(module, **optimizer_sizes)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ModelMistake(
            f"{spec.text}: optimizer(model) returns {type(optimizer).__name__}, not a torch.optim.Optimizer.",
            "Return one: torch.optim.AdamW(model.parameters(), lr=1e-3).",
        )
    return optimizer


def restart_optimizer(optimizer: Any, initial: Mapping[str, Any], *, zeros: bool) -> None:
    """Reset the optimizer to its state before the first step.

    With `zeros`, the state tensors are zeroed in place, as a CUDA graph needs. Otherwise the initial state is
    loaded.
    """
    import torch

    if not zeros:
        optimizer.load_state_dict(deepcopy(initial))
        return
    with torch.no_grad():
        for value in chain.from_iterable(state.values() for state in optimizer.state.values()):
            if torch.is_tensor(value):
                value.zero_()


def disable_dropout(module: Any) -> bool:
    """Set every dropout probability to zero and return whether one was nonzero.

    This covers dropout layers, attention, recurrent layers and attributes named like dropout, but not
    probabilities in function calls.
    """
    was_active = False
    for owner in chain.from_iterable((layer, getattr(layer, "config", None)) for layer in module.modules()):
        for name, value in list(vars(owner).items()) if hasattr(owner, "__dict__") else ():
            kind = type(owner).__name__.lower()
            drops = "drop" in name or (name == "p" and ("drop" in kind or "depth" in kind))
            if drops and isinstance(value, float) and value > 0:
                setattr(owner, name, 0.0)
                was_active = True
    return was_active


def graph_of(spec: ModelSpec, sizes: Mapping[str, Scalar]) -> dict[str, Any]:
    """Facts of a training step at these sizes, as JSON values; see `torch_graph.graph_of`.

    `digest` includes the operators of the loss and the settings of the optimizer. `flops` includes the
    backward pass. `drops` is True if the model has active dropout.
    """
    import torch

    module = torch_module.build(spec, sizes).train()
    inputs, _ = torch_module.make_inputs(spec, sizes, module, 0)
    targets, _ = make_targets(spec, sizes, 0)
    arrays = {f"{INPUT}{name}": array for name, array in inputs.items()}
    arrays |= {f"{TARGET}{name}": array for name, array in targets.items()}
    tensors = torch_module.tensors_of(module)
    shapes = [[name, list(tensor.shape)] for name, tensor in tensors.items()]
    parameter_count = sum(parameter.numel() for parameter in module.parameters())
    constants = len(torch_graph.constant_parameters(module))
    objective = objective_of(spec)
    setup = usage.training_setup(
        spec,
        sizes,
        module,
        torch_module.example_inputs(spec, sizes, module, 0),
        objective,
        _draw_targets(spec, sizes, 0),
        optimizer_of(spec, sizes, module, fused=True),
        takes_inputs=_takes_inputs(objective),
    )
    try:
        operators, flops, state_count, optimizer_settings = _trace(
            spec, sizes, module.to("meta"), arrays, "meta"
        )
    except Exception:  # noqa: BLE001 - modules that branch on values raise anything on the meta device
        cpu_module = torch_module.build(spec, sizes).train()
        operators, flops, state_count, optimizer_settings = _trace(spec, sizes, cpu_module, arrays, "cpu")
    tensors_moved = [(array.size, torch.from_numpy(array).dtype) for array in arrays.values()]
    tensors_moved += [(tensor.numel(), tensor.dtype) for tensor in tensors.values()]
    trainable_count = sum(parameter.numel() for parameter in trainable_parameters(module).values())
    floats = sum(size for size, dtype in tensors_moved if dtype.is_floating_point)
    return {
        "digest": sha256(json.dumps([shapes, operators, optimizer_settings]).encode()).hexdigest()[
            : torch_graph.DIGEST_DIGITS
        ],
        "flops": int(flops),
        "taps": most_taps(shape for _, shape in shapes),
        "parameters": parameter_count,
        "weights_dtype": torch_graph.weights_dtype(module),
        "constants": constants,
        "floats": floats + RESULT_MOVES * trainable_count + SLOT_MOVES * state_count,
        "other_bytes": sum(
            size * dtype.itemsize for size, dtype in tensors_moved if not dtype.is_floating_point
        ),
        "takes_images": any(
            array.ndim == IMAGE_AXES and array.dtype.kind == "f" for array in inputs.values()
        ),
        "takes": [array_type(array.dtype, array.shape) for array in arrays.values()],
        "gives": [LOSS],
        "drops": disable_dropout(module),
        **setup,
    }


def _trace(
    spec: ModelSpec, sizes: Mapping[str, Scalar], module: Any, arrays: Mapping[str, AnyArray], device: str
) -> tuple[Any, int, int, Any]:
    """Return (operators of the forward pass, FLOPs, elements of optimizer state, optimizer settings)."""
    import torch

    from benchbench.workloads._reference.torch_rounding import plain_operators

    operators: list[Any] = []
    compute = loss_function(spec, sizes, module, torch.device(device), torch.float32)
    optimizer = optimizer_of(spec, sizes, module, fused=False)
    tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
    with plain_operators(), torch_graph.flop_counter() as counter:
        with torch_graph.record_operators(operators):
            loss = compute(tensors)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            shown = list(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise ModelMistake(f"{spec.text}: its loss is {shown}, not a number.", "Return its mean.")
        loss.backward()
    optimizer.step()
    parameter_ids = {id(parameter) for parameter in module.parameters()}
    state_count = sum(
        value.numel()
        for parameter, state in optimizer.state.items()
        for value in state.values()
        if id(parameter) in parameter_ids and torch.is_tensor(value) and value.shape == parameter.shape
    )
    settings = [type(optimizer).__name__, *(_plain_group(group) for group in optimizer.param_groups)]
    return operators, counter.get_total_flops(), state_count, settings


def _plain_group(group: Mapping[str, Any]) -> list[Any]:
    """Settings of a group of parameters, and their number, without the choice of kernel.

    Settings that are off are left out, as other versions of torch may not have them.
    """
    kernels = ("params", "fused", "foreach", "capturable", "differentiable")
    settings = [[name, str(value)] for name, value in sorted(group.items()) if name not in kernels and value]
    return [len(group["params"]), settings]
