"""What a user's model must give: the model itself in float64, and how far rounding may take each output.

Every operator's result is rounded at random to the case's dtype (`Rounding`); six times the largest error of
the draws is tolerated. How much of the weights this can see is counted: of a row of a weight that could be
zero without an output leaving its tolerance, nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from benchbench.arrays import AnyArray
from benchbench.model.case import Dtype
from benchbench.worker.causes import one_line
from benchbench.worker.own import torch_module
from benchbench.worker.own.workload import INPUT, OwnInference, load_weights, widened
from benchbench.worker.random_cache import cached_arrays, cached_normal, cached_result
from benchbench.worker.reference import FLOAT64_FACTOR, VERIFIABLE
from benchbench.worker.verify import UNIT_ROUNDOFF, Reference, relative_error
from benchbench.workloads.base import Draw
from benchbench.workloads.draw import SEED

DRAWS = 2  # they agree within some per cent
MOST_FAINT = (
    0.1  # of the weights' rows that tell too little, beyond which a result that agrees says too little
)
MOST_HIDDEN = 0.9  # of all rows: with ReLUs half of them rest on the inputs of one sample
FLOAT64_OF_FLOAT32 = 2.0**-29  # float64's unit roundoff over float32's


@dataclass(frozen=True, slots=True)
class Seen:
    """How many rows the weights have, and how many of them the verification cannot see.

    `faint`: change the outputs by less than is tolerated; `resting`: do not change them with these inputs, as
    behind a ReLU.
    """

    rows: int
    faint: int
    resting: int

    @property
    def share(self) -> float:
        """The share that it cannot see."""
        return (self.faint + self.resting) / self.rows if self.rows else 0.0

    @property
    def faint_share(self) -> float:
        """The share of rows that change an output by less than is tolerated, among those that change it."""
        return self.faint / (self.rows - self.resting) if self.rows > self.resting else 0.0


class CannotVerify(Exception):
    """The model's own float64 does not tell what is right; the message says why."""


def own_reference(workload: OwnInference, dtype: Dtype) -> Reference:
    """The reference of all outputs, whose elements are in the run's folder (`own_expected`).

    `unverified`: why there is none, if so.
    """
    try:
        expected = _kept(workload, dtype, 0)
        _kept(workload, dtype, 1)
        tolerance = own_tolerance(workload, dtype)
        kept = {name: limit for name, limit in tolerance.items() if name in expected}
        if not kept:
            raise CannotVerify("rounding alone, or chance, takes every output too far from it")
        seen = seen_weights(workload, own_tolerance(workload, Dtype.FLOAT32))
        reason = ""
        if all(workload.is_integer(name) for name in kept):
            reason = "its outputs are integers, which most mistakes leave as they are"
        if seen.faint_share > MOST_FAINT or seen.share > MOST_HIDDEN:
            reason = f"{seen.share:.0%} of the rows of its weights could be zero, and no output would tell"
    except CannotVerify as why:
        return Reference(expected={}, tolerance={}, others={}, unverified=str(why))
    return Reference(expected={}, tolerance=kept, others={}, kept=True, hidden=seen.share, unverified=reason)


def own_expected(workload: OwnInference, dtype: Dtype, reference: Reference) -> Reference:
    """The reference with its elements: of both inputs, all of them."""
    first: dict[str, Any] = _kept(workload, dtype, 0)
    second: dict[str, Any] = _kept(workload, dtype, 1)
    return replace(
        reference,
        expected={name: first[name] for name in reference.tolerance},
        others={name: second[name] for name in reference.tolerance},
    )


def _kept(workload: OwnInference, dtype: Dtype, number: int) -> dict[str, AnyArray]:
    """The outputs in float64 of inputs and weights as the dtype has them, from the run's folder."""
    name = f"float64 of inputs {number} in {dtype.storage} of {workload!r}"
    return cached_arrays(name, lambda: _exact(workload, dtype, number))


def _exact(workload: OwnInference, dtype: Dtype, number: int) -> dict[str, AnyArray]:
    from benchbench.workloads._reference.torch_rounding import Widening

    with _in_float64():
        outputs = _outputs(workload, dtype, number, Widening())
    if wrong := [name for name, values in outputs.items() if not _is_finite(values)]:
        raise CannotVerify(f"its {wrong[0]} in float64 is not finite")
    return outputs


@contextmanager
def _in_float64() -> Iterator[None]:
    """What the model raises in float64 is why it cannot be verified."""
    try:
        yield
    except Exception as error:
        raise CannotVerify(f"it does not compute in float64: {one_line(error)}") from error


def _is_finite(values: AnyArray) -> bool:
    import numpy as np

    return values.dtype.kind != "f" or bool(np.isfinite(values).all())


def _outputs(workload: OwnInference, dtype: Dtype, number: int, mode: Any) -> dict[str, AnyArray]:
    import torch

    from benchbench.workloads._reference.torch_rounding import computed_in

    draw = Draw(dtype, standard=cached_normal, renewed=lambda _: number)
    step = wide_step(workload, draw)[1]
    torch_module.seed_everything(number)  # a module may draw numbers; where it does, draws of rounding differ
    with torch.no_grad():
        found = computed_in(mode, step)
    return {name: _as_float64(torch_module.as_array(each)) for name, each in found.items()}


def _as_float64(array: AnyArray) -> AnyArray:
    """Numbers as a session's `fetch` reads them."""
    return array.astype(float, copy=False)


def wide_step(workload: OwnInference, draw: Draw) -> tuple[Any, Callable[[], dict[str, Any]]]:
    """The module in float64, with the draw's weights, and what gives its outputs of the draw's inputs."""
    import torch

    arrays = workload.arrays(draw)
    module = torch_module.built(workload.spec, workload.sizes).to(dtype=torch.float64)
    load_weights(module, arrays)
    arguments = workload.arguments(module)
    tensors = {
        name.removeprefix(INPUT): widened(array) for name, array in arrays.items() if workload.is_input(name)
    }

    def step() -> dict[str, Any]:
        own, named = arguments(tensors)
        return torch_module.outputs_of(module(*own, **named))

    return module, step


def own_tolerance(workload: OwnInference, dtype: Dtype) -> dict[str, float]:
    """Output → how far rounding takes it, at a small batch; without what it takes too far to tell anything.

    Integers must be as they are in float64: where rounding decides them, they tell nothing.
    """
    small = workload.tiny()
    return cached_result(f"tolerance in {dtype} of {small!r}", lambda: _drawn(small, dtype))


def _drawn(workload: OwnInference, dtype: Dtype) -> dict[str, float]:
    from benchbench.workloads._reference.torch_rounding import Rounding

    exact = _kept(workload, dtype, 0)
    with _in_float64():
        draws = [_outputs_of_seed(workload, dtype, Rounding(dtype, seed), seed) for seed in range(DRAWS)]
    integers = {name for name in exact if workload.is_integer(name)}
    wider = FLOAT64_FACTOR * FLOAT64_OF_FLOAT32 if dtype is Dtype.FLOAT64 else 1.0
    found: dict[str, float] = {}
    for name, values in exact.items():
        error = max(relative_error(draw[name], values) for draw in draws)
        if name in integers:
            found |= {name: 0.0} if error == 0 else {}
        elif error <= VERIFIABLE:
            found[name] = wider * max(workload.draws_tolerated * error, UNIT_ROUNDOFF[dtype.storage])
    return found


def _outputs_of_seed(workload: OwnInference, dtype: Dtype, mode: Any, seed: int) -> dict[str, AnyArray]:
    import torch

    from benchbench.workloads._reference.torch_rounding import computed_in

    step = wide_step(workload, Draw(dtype, standard=cached_normal))[1]
    torch.manual_seed(SEED + 1 + seed)
    with torch.no_grad():
        found = computed_in(mode, step)
    return {name: _as_float64(torch_module.as_array(each)) for name, each in found.items()}


def seen_weights(workload: OwnInference, tolerance: Mapping[str, float]) -> Seen:
    """How many rows of the weights could be zero without any output leaving its tolerance.

    One way back tells, from a random projection of each output: its derivative along a row, which is that of
    N(0, ‖change of the output‖²), beside the tolerated change. Rows of a table that no input looks up are not
    counted.
    """
    small = workload.tiny()
    found = cached_result(f"seen of {small!r}", lambda: _counted(small, tolerance))
    return Seen(found["rows"], found["faint"], found["resting"])


def _counted(workload: OwnInference, tolerance: Mapping[str, float]) -> dict[str, int]:
    import torch

    from benchbench.workloads._reference.torch_rounding import Widening, plain_operators

    module, step = wide_step(workload, Draw(Dtype.FLOAT32, standard=cached_normal))
    looked_up = {
        id(each.weight)
        for each in module.modules()
        if isinstance(each, torch.nn.Embedding | torch.nn.EmbeddingBag)
    }
    weights = [each for each in module.parameters() if each.is_floating_point()]
    for each in weights:
        each.requires_grad_(True)
    source = torch.Generator().manual_seed(SEED)
    try:
        with torch.enable_grad(), plain_operators(), Widening():
            outputs = step()
            total = sum(
                (torch.randn(each.shape, generator=source, dtype=torch.float64) * each).sum()
                / (float(each.detach().norm()) * tolerance[name])
                for name, each in outputs.items()
                if tolerance.get(name) and each.requires_grad and float(each.detach().norm())
            )
            if not isinstance(total, torch.Tensor):
                return {"rows": 0, "faint": 0, "resting": 0}
            gradients = torch.autograd.grad(total, weights, allow_unused=True)
    except RuntimeError:  # an operator without a derivative: nothing can be counted
        return {"rows": 0, "faint": 0, "resting": 0}
    rows = faint = resting = 0
    for weight, gradient in zip(weights, gradients, strict=True):
        if gradient is None:  # it takes no part: nobody can forget it
            continue
        changes = (gradient * weight.detach()).reshape(_row_count(weight), -1).sum(dim=1).abs()
        acts = gradient.reshape(_row_count(weight), -1).abs().sum(dim=1) > 0
        faint += int((changes[acts] < 1).sum())
        rows += int(acts.sum()) if id(weight) in looked_up else len(changes)
        resting += 0 if id(weight) in looked_up else int((~acts).sum())
    return {"rows": rows, "faint": faint, "resting": resting}


def _row_count(weight: Any) -> int:
    return int(weight.shape[0]) if weight.dim() else 1
