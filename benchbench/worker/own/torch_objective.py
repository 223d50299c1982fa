"""What a user's file says of training: its loss, the targets, the optimizer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from benchbench.arrays import AnyArray
from benchbench.model.case import Scalar
from benchbench.model.own import ModelSpec
from benchbench.worker.own.source import (
    ModelMistake,
    imported,
    in_folder,
    other_than,
    seed_everything,
    sizes_of,
)
from benchbench.worker.own.torch_module import Arguments, arguments_like, as_array, named_tensors

LOSS, TARGETS, OPTIMIZER = "loss", "targets", "optimizer"  # what a file may define besides
USUAL_OPTIMIZER = "momentum"  # of `_optimizers.py`: updates that follow from gradients, whatever their size


@dataclass(frozen=True, slots=True)
class Objective:
    """Functions that give the loss of the model's output, its targets, and the optimizer of a model.

    Without a `loss` the model's own output of that name is taken, without an `optimizer` one of the table.
    """

    loss: Callable[..., Any] | None = None
    targets: Callable[..., Any] | None = None
    sizes_of_targets: Mapping[str, Scalar] = field(default_factory=dict)
    optimizer: Callable[..., Any] | None = None
    sizes_of_optimizer: Mapping[str, Scalar] = field(default_factory=dict)

    def sizes(self, taken: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """All parameters of a training step: those of the model, and what training adds, with defaults."""
        own = {**self.sizes_of_targets, **self.sizes_of_optimizer}
        return {**taken, **{name: value for name, value in own.items() if name not in taken}}


@cache
def objective_of(spec: ModelSpec) -> Objective:
    """What the file says of training. Raises ModelMistake, and whatever the file raises."""
    if spec.is_config:
        return objective_in({})
    with in_folder(spec):
        return objective_in(vars(imported(spec)))


def objective_in(names: Mapping[str, Any]) -> Objective:
    """What `loss`, `targets` and `optimizer` among the names say. Raises ModelMistake."""
    loss, targets, optimizer = (names.get(name) for name in (LOSS, TARGETS, OPTIMIZER))
    if not callable(loss):
        loss = None
    if loss and optimizer is not None and not inspect.isroutine(optimizer):
        raise ModelMistake(
            "optimizer is no function.",
            "def optimizer(model):\n    return torch.optim.AdamW(model.parameters(), lr=1e-3)",
        )
    own = optimizer if inspect.isroutine(optimizer) else None
    given = list(inspect.signature(own).parameters)[:1] if own else []
    return Objective(
        loss=loss,
        targets=targets if callable(targets) else None,
        sizes_of_targets=sizes_of(targets, TARGETS) if callable(targets) else {},
        optimizer=own,
        sizes_of_optimizer=sizes_of(own, OPTIMIZER, given) if own else {OPTIMIZER: USUAL_OPTIMIZER},
    )


def made_targets(
    spec: ModelSpec, params: Mapping[str, Scalar], number: int
) -> tuple[dict[str, AnyArray], Arguments]:
    """The targets by name, as arrays, and what makes arguments of tensors by the same names; or none.

    `number`: which of them, as of the inputs.
    """
    objective = objective_of(spec)
    if objective.targets is None:
        return {}, lambda _: ((), {})
    make = objective.targets
    own = {name: value for name, value in params.items() if name in objective.sizes_of_targets}

    def made(number: int) -> Any:
        with in_folder(spec):
            seed_everything(number)
            return make(**own)

    def arrays_of(given: Any) -> dict[str, AnyArray]:
        return {name: as_array(each) for name, each in named_tensors(given).items()}

    given = made(number)
    arrays = arrays_of(given)
    if number:
        arrays = dict(other_than(arrays_of(made(0)), arrays, number))
    return arrays, arguments_like(given)


def takes_several(function: Any) -> bool:
    """Whether it must be given more than one argument."""
    call = function.forward if hasattr(function, "forward") else function
    needed = [
        each
        for each in inspect.signature(call).parameters.values()
        if each.default is each.empty and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    return len(needed) > 1
