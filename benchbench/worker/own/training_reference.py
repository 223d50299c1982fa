"""What a step of a user's training must do: the same in float64, and how far rounding may take each tensor.

The very program that is measured is built in float64 and stepped under the modes of `torch_rounding.py`,
which see the way back and the optimizer as well. Losses are compared, and the gradient and update of each
parameter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import Any

from benchbench.arrays import Array, Floats, Indices
from benchbench.model.case import Dtype
from benchbench.model.world import ALONE, World
from benchbench.worker.causes import one_line
from benchbench.worker.own.reference import FLOAT64_OF_FLOAT32, MOST_FAINT
from benchbench.worker.own.source import ModelMistake, seed_everything
from benchbench.worker.own.torch_training import OwnTraining
from benchbench.worker.own.workload import WEIGHT, widened
from benchbench.worker.random_cache import cached_normal, cached_result
from benchbench.worker.reference import FLIPS_TOLERATED, flipping_in, storage_errors
from benchbench.worker.verify import (
    FLOAT64_FACTOR,
    SPARED,
    UNIT_ROUNDOFF,
    UPDATE,
    VERIFIABLE,
    Reference,
    relative_error,
    trained_elements,
)
from benchbench.workloads.base import Draw
from benchbench.workloads.draw import SEED
from benchbench.workloads.steps import DRAWS_TOLERATED

LOSSES = "losses"
GRADIENTS = ("gradient of ", "last gradient of ")  # what the names of a parameter's begin with
NEAR_ZERO = 3.0  # standard deviations of what rounding does to a tensor's gradient
DRAWS = 4  # of a hundred tensors, the errors of some differ from draw to draw


class Wide:
    """The CPU in float64, where a program is built for its reference, and its tensors are read."""

    compute: Any = None
    channels_last = False
    world: World = ALONE

    def __init__(self) -> None:
        import torch

        self.device, self.dtype = torch.device("cpu"), torch.float64

    def put(self, array: Array) -> Any:
        """A tensor of its own, floats in float64."""
        return widened(array.copy())

    def take(self, output: Any, index: Indices) -> Floats:
        """Elements of a tensor."""
        found: Floats = self.fetch(output)[tuple(index.T)]
        return found

    def fetch(self, output: Any) -> Floats:
        """All of a tensor."""
        found: Floats = output.detach().double().numpy().copy()
        return found


def training_reference(workload: OwnTraining, dtype: Dtype) -> Reference:
    """The reference of the first steps at the small size; in less than float32 with that in float32 besides.

    `unverified`: why nothing says what is right, if so.
    """
    small = workload.small()
    found = _kept(small, dtype)
    plain = _kept(small, Dtype.FLOAT32) if dtype.is_narrow else found
    reason = found.unverified or plain.unverified
    if not reason and plain.hidden > MOST_FAINT:
        reason = f"rounding alone takes the updates of {plain.hidden:.0%} of its weights too far"
    return replace(
        found, plain=asdict(plain) if dtype.is_narrow else None, unverified=reason, hidden=plain.hidden
    )


def _kept(small: OwnTraining, dtype: Dtype) -> Reference:
    return Reference(
        **cached_result(f"training in {dtype} of {small!r}", lambda: asdict(_drawn(small, dtype)))
    )


def _drawn(small: OwnTraining, dtype: Dtype) -> Reference:
    """Without the tensors that rounding alone takes too far in this dtype."""
    from benchbench.workloads._reference.torch_rounding import Flipping, Rounding, Widening

    def none(reason: str) -> Reference:
        return Reference(expected={}, tolerance={}, others={}, unverified=reason)

    flipping = Flipping(flipping_in(dtype))
    try:
        exact = trained(small, dtype, Widening())
        modes = [Rounding(dtype, seed, sums=True) for seed in range(DRAWS)]
        modes.append(Rounding(dtype, DRAWS, nearest=True))
        draws = [trained(small, dtype, mode, seed) for seed, mode in enumerate(modes)]
        flipped = trained(small, dtype, flipping)
    except ModelMistake:
        raise
    except Exception as raised:  # noqa: BLE001 - what a user's model raises in float64 is why
        return none(f"it does not train in float64: {one_line(raised)}")
    if not all(math.isfinite(each) for each in exact[LOSSES]):
        return none("its loss in float64 is not finite")
    errors = {name: [relative_error(draw[name], exact[name], SPARED) for draw in draws] for name in exact}
    arrays = {
        name.removeprefix(WEIGHT): array
        for name, array in small.arrays(Draw(dtype, standard=cached_normal)).items()
        if name.startswith(WEIGHT) and f"{UPDATE}{name.removeprefix(WEIGHT)}" in exact
    }
    for name, error in storage_errors(arrays, exact, UNIT_ROUNDOFF[dtype.storage]).items():
        if exact[name].any():  # what nothing moves is not rounded
            errors[name].append(error)
    if flipping.turned:
        for name in exact:
            error = relative_error(flipped[name], exact[name], SPARED)
            errors[name].append(FLIPS_TOLERATED / DRAWS_TOLERATED * error)
    for name, error in turned_updates(exact, draws).items():
        errors[name].append(FLIPS_TOLERATED / DRAWS_TOLERATED * error)
    kept = [name for name in exact if max(errors[name]) <= VERIFIABLE]
    wider = FLOAT64_FACTOR * FLOAT64_OF_FLOAT32 if dtype is Dtype.FLOAT64 else 1.0
    tolerance = {
        name: max(wider * DRAWS_TOLERATED * max(errors[name]), UNIT_ROUNDOFF[dtype.storage]) for name in kept
    }
    if tolerance.get(LOSSES, math.inf) > VERIFIABLE:
        return none("rounding alone, or chance, takes its losses too far: dropout that is no layer's, say")
    sizes = {name: array.size for name, array in arrays.items()}
    unseen = sum(size for name, size in sizes.items() if f"{UPDATE}{name}" not in kept)
    return Reference(
        expected={name: exact[name].tolist() for name in kept},
        tolerance=tolerance,
        others={},
        spared=SPARED,
        hidden=unseen / max(1, sum(sizes.values())),
    )


def turned_updates(exact: Mapping[str, Floats], draws: Sequence[Mapping[str, Floats]]) -> dict[str, float]:
    """Update → how large a part of it rounding may turn: elements whose gradient may have either sign.

    Adam and its kin move a parameter as far by the smallest gradient as by the largest.
    """
    import numpy as np

    found: dict[str, float] = {}
    for name in (each.removeprefix(UPDATE) for each in exact if each.startswith(UPDATE)):
        update = np.asarray(exact[f"{UPDATE}{name}"])
        near = np.zeros(update.shape, dtype=bool)
        for gradient in (f"{step}{name}" for step in GRADIENTS if f"{step}{name}" in exact):
            errors = [np.asarray(draw[gradient]) - exact[gradient] for draw in draws]
            near |= np.abs(exact[gradient]) < NEAR_ZERO * np.sqrt(np.mean(np.square(errors)))
        if update[near].any():  # what nothing moves cannot turn
            found[f"{UPDATE}{name}"] = float(np.linalg.norm(update[near]) / np.linalg.norm(update))
    return found


def trained(small: OwnTraining, dtype: Dtype, mode: Any, seed: int = 0) -> Mapping[str, Floats]:
    """Sampled elements of what the first steps leave, computed under the mode."""
    import torch

    from benchbench.workloads._reference.torch_rounding import Rounding, plain_operators

    wide: Any = Wide()  # without what only other workloads ask of a device
    program = small.build_torch(wide, small.arrays(Draw(dtype, standard=cached_normal)))
    seed_everything(0)
    torch.manual_seed(SEED + 1 + seed)

    def step() -> float:
        updating = mode.updating(DRAWS_TOLERATED) if isinstance(mode, Rounding) else nullcontext()
        with plain_operators(), mode, updating:
            return float(program.step(*program.inputs))

    return trained_elements(program, step, lambda: (), wide)
