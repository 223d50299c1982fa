"""The training objective in a user's file: loss, targets and optimizer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from benchbench.arrays import AnyArray
from benchbench.model.case import Scalar
from benchbench.model.user_model import ModelSpec
from benchbench.worker.user_models.source import (
    ModelMistake,
    default_sizes,
    distinct_inputs,
    import_model_file,
    in_model_folder,
    seed_everything,
)
from benchbench.worker.user_models.torch_module import Arguments, arguments_like, as_array, named_tensors

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
    objective = objective_of(spec)
    if objective.targets is None:
        return {}, lambda _: ((), {})
    make = objective.targets
    target_sizes = {name: value for name, value in params.items() if name in objective.target_sizes}

    def draw(number: int) -> Any:
        with in_model_folder(spec):
            seed_everything(number)
            return make(**target_sizes)

    def arrays_of(targets: Any) -> dict[str, AnyArray]:
        return {name: as_array(tensor) for name, tensor in named_tensors(targets).items()}

    targets = draw(number)
    arrays = arrays_of(targets)
    if number:
        arrays = dict(distinct_inputs(arrays_of(draw(0)), arrays, number))
    return arrays, arguments_like(targets)


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
