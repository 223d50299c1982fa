"""Reference of a user's training step: the same step in float64, and the tolerance of each tensor.

The measured program itself is built in float64 and stepped under the modes of `torch_rounding.py`, which also
intercept the backward pass and the optimizer. Losses, gradients and parameter updates are compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from benchbench.arrays import Array, Floats, Indices
from benchbench.errors import one_line
from benchbench.model.case import Dtype
from benchbench.model.placement import ALONE, World
from benchbench.worker.random_cache import cached_normal, cached_result
from benchbench.worker.reference import FLIPS_TOLERATED, flipping_for, storage_errors
from benchbench.worker.user_models.reference import (
    FLOAT64_OF_FLOAT32,
    MAX_FAINT,
    plain_tolerance,
)
from benchbench.worker.user_models.source import ModelMistake, seed_everything
from benchbench.worker.user_models.torch_training import ModelTraining
from benchbench.worker.user_models.workload import WEIGHT, widened_tensor
from benchbench.worker.verify import (
    FLOAT64_FACTOR,
    OUTLIERS,
    UNIT_ROUNDOFF,
    UPDATE,
    VERIFIABLE,
    Reference,
    dropout_change,
    relative_error,
    trained_elements,
)
from benchbench.workloads.base import Draw
from benchbench.workloads.draw import SEED
from benchbench.workloads.steps import DRAWS_TOLERATED

LOSSES = "losses"
GRADIENTS = ("gradient of ", "last gradient of ")  # prefixes before a parameter's name
NEAR_ZERO = 3.0  # standard deviations of the rounding error of a tensor's gradient
DRAWS = 4  # among a hundred tensors, the errors of some differ from draw to draw


class Float64Context:
    """Device context of the CPU in float64, for the reference program."""

    compute: Any = None
    channels_last = False
    world: World = ALONE

    def __init__(self, case_dtype: Dtype) -> None:
        """`case_dtype`: dtype of the case that is verified."""
        import torch

        self.case_dtype = case_dtype
        self.device, self.dtype = torch.device("cpu"), torch.float64

    def put(self, array: Array) -> Any:
        """A new tensor, floats as float64."""
        return widened_tensor(array.copy())

    def take(self, output: Any, index: Indices) -> Floats:
        """Elements of a tensor at these indices."""
        elements: Floats = self.fetch(output)[tuple(index.T)]
        return elements

    def fetch(self, output: Any) -> Floats:
        """All elements of a tensor."""
        elements: Floats = output.detach().double().numpy().copy()
        return elements


def training_reference(workload: ModelTraining, dtype: Dtype) -> Reference:
    """Reference of the first steps at the small size, for narrow dtypes with that in float32.

    If verification is impossible, `unverified` has the reason.
    """
    small = workload.small()
    reference = _cached_reference(small, dtype)
    float32_reference = _cached_reference(small, Dtype.FLOAT32) if dtype.is_narrow else reference
    reason = reference.unverified or float32_reference.unverified
    if not reason and float32_reference.hidden > MAX_FAINT:
        reason = f"rounding alone takes the updates of {float32_reference.hidden:.0%} of its weights too far"
    change = 0.0
    if not reason and workload.graph["drops"]:
        change = cached_result(f"dropout of {small!r}", lambda: _dropout_change(small))["change"]
    return replace(
        reference,
        dropout_change=change,
        float32=asdict(float32_reference) if dtype.is_narrow else None,
        unverified=reason,
        hidden=float32_reference.hidden,
    )


def _cached_reference(small: ModelTraining, dtype: Dtype) -> Reference:
    return Reference(
        **cached_result(f"training in {dtype} of {small!r}", lambda: asdict(_compute_reference(small, dtype)))
    )


def _compute_reference(small: ModelTraining, dtype: Dtype) -> Reference:
    """The reference without the tensors that rounding alone moves too far in this dtype."""
    from benchbench.workloads._reference.torch_rounding import (
        PLAIN_DTYPES,
        Flipping,
        Plain,
        Rounding,
        Widening,
    )

    def unverified(reason: str) -> Reference:
        return Reference(expected={}, tolerance={}, others={}, unverified=reason)

    flipping = Flipping(flipping_for(dtype))
    try:
        exact = step_elements(small, dtype, Widening())
        modes = [Rounding(dtype, seed, sums=True) for seed in range(DRAWS)]
        modes.append(Rounding(dtype, DRAWS, nearest=True))
        draws = [step_elements(small, dtype, mode, seed) for seed, mode in enumerate(modes)]
        flipped = step_elements(small, dtype, flipping)
        plain = step_elements(small, dtype, Plain(dtype)) if dtype in PLAIN_DTYPES else exact
    except ModelMistake:
        raise
    except Exception as raised:  # noqa: BLE001 - a user's model may raise anything in float64
        return unverified(f"it does not train in float64: {one_line(raised)}")
    if not all(math.isfinite(loss) for loss in exact[LOSSES]):
        return unverified("its loss in float64 is not finite")
    errors = {name: [relative_error(draw[name], exact[name], OUTLIERS) for draw in draws] for name in exact}
    arrays = {
        name.removeprefix(WEIGHT): array
        for name, array in small.arrays(Draw(dtype, standard=cached_normal)).items()
        if name.startswith(WEIGHT) and f"{UPDATE}{name.removeprefix(WEIGHT)}" in exact
    }
    for name, error in storage_errors(arrays, exact, UNIT_ROUNDOFF[dtype.storage]).items():
        if exact[name].any():  # an unchanged tensor has no rounding error
            errors[name].append(error)
    if flipping.turned:
        for name in exact:
            error = relative_error(flipped[name], exact[name], OUTLIERS)
            errors[name].append(FLIPS_TOLERATED / DRAWS_TOLERATED * error)
    for name, error in sign_ambiguity(exact, draws).items():
        errors[name].append(FLIPS_TOLERATED / DRAWS_TOLERATED * error)
    names = [name for name in exact if max(errors[name]) <= VERIFIABLE]
    float64_factor = FLOAT64_FACTOR * FLOAT64_OF_FLOAT32 if dtype is Dtype.FLOAT64 else 1.0
    tolerance = {
        name: max(
            float64_factor * DRAWS_TOLERATED * max(errors[name]),
            UNIT_ROUNDOFF[dtype.storage],
            plain_tolerance(relative_error(plain[name], exact[name], OUTLIERS), dtype),
        )
        for name in names
    }
    if tolerance.get(LOSSES, math.inf) > VERIFIABLE:
        return unverified(
            "rounding alone, or chance, moves its losses too far; one cause is dropout outside of layers"
        )
    sizes = {name: array.size for name, array in arrays.items()}
    hidden_size = sum(size for name, size in sizes.items() if f"{UPDATE}{name}" not in names)
    return Reference(
        expected={name: exact[name].tolist() for name in names},
        tolerance=tolerance,
        others={},
        outliers=OUTLIERS,
        hidden=hidden_size / max(1, sum(sizes.values())),
    )


def _dropout_change(small: ModelTraining) -> dict[str, float]:
    """The result of `verify.dropout_change` in float64."""
    from benchbench.workloads._reference.torch_rounding import Widening, computed_in

    dropping, wide = replace(small, drops=True), Float64Context(Dtype.FLOAT32)
    context: Any = wide  # it lacks the members that other workloads need
    arrays = dropping.arrays(Draw(Dtype.FLOAT32, standard=cached_normal))
    program = dropping.build_torch(context, arrays)

    def step() -> None:
        computed_in(Widening(), partial(program.step, *program.inputs))

    return {"change": dropout_change(program, arrays, step, wide)}


def sign_ambiguity(exact: Mapping[str, Floats], draws: Sequence[Mapping[str, Floats]]) -> dict[str, float]:
    """Share of each update that rounding may reverse, by name.

    These are the elements whose gradient may have either sign. Adam and similar optimizers move a parameter
    as far for the smallest gradient as for the largest.
    """
    import numpy as np

    shares: dict[str, float] = {}
    for name in (key.removeprefix(UPDATE) for key in exact if key.startswith(UPDATE)):
        update = np.asarray(exact[f"{UPDATE}{name}"])
        near_zero = np.zeros(update.shape, dtype=bool)
        for gradient in (f"{step}{name}" for step in GRADIENTS if f"{step}{name}" in exact):
            errors = [np.asarray(draw[gradient]) - exact[gradient] for draw in draws]
            near_zero |= np.abs(exact[gradient]) < NEAR_ZERO * np.sqrt(np.mean(np.square(errors)))
        if update[near_zero].any():  # an update of zero has no direction
            shares[f"{UPDATE}{name}"] = float(np.linalg.norm(update[near_zero]) / np.linalg.norm(update))
    return shares


def step_elements(small: ModelTraining, dtype: Dtype, mode: Any, seed: int = 0) -> Mapping[str, Floats]:
    """Sampled elements after the first steps, computed under the mode."""
    import torch

    from benchbench.workloads._reference.torch_rounding import Rounding, plain_operators

    wide: Any = Float64Context(dtype)  # Any: it lacks the members that other workloads need
    program = small.build_torch(wide, small.arrays(Draw(dtype, standard=cached_normal)))
    seed_everything(0)
    torch.manual_seed(SEED + 1 + seed)

    def step() -> float:
        updating = mode.updating(DRAWS_TOLERATED) if isinstance(mode, Rounding) else nullcontext()
        with plain_operators(), mode, updating:
            return float(program.step(*program.inputs))

    return trained_elements(program, step, lambda: (), wide)
