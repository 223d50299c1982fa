"""What a training step on several devices takes of each: memory, and what it sends. From the maths; pure."""

from __future__ import annotations

from dataclasses import dataclass

from benchbench.model.case import Case
from benchbench.model.placement import Strategy
from benchbench.plan.costs import instance
from benchbench.workloads.base import Training


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Of one device, in bytes. `held`: parameters, their gradients, and what the optimizer keeps of them.

    `sent`: in a step, by the ring that nccl-tests counts by. None: the framework's partitioner decides.
    """

    held: int
    sent: int | None


def traffic(case: Case) -> Traffic | None:
    """None for a case of one device, or one whose parameters nobody counted."""
    sized = instance(case)
    if case.placement.devices == 1 or not isinstance(sized, Training):
        return None
    parameters, slots = sized.held(case.computes_in)
    if not parameters:
        return None
    placement, micro_batches = case.placement, int(case.params.get("accumulate", 1))
    return traffic_of(placement.strategy, placement.devices, parameters, slots, micro_batches)


def traffic_of(
    strategy: Strategy, devices: int, parameters: int, slots: int, micro_batches: int = 1
) -> Traffic:
    """Of that many bytes of parameters, and of what the optimizer keeps of them.

    Data-parallel, gradients are all-reduced: 2 (n − 1)/n of their bytes leave each device (nccl-tests,
    doc/PERFORMANCE.md). Fully sharded, each holds 1/n of everything; parameters are gathered forward and
    again backward, gradients are reduce-scattered: (n − 1)/n each (Rajbhandari et al. 2020, "ZeRO", 7.2.2).
    Every micro-batch gathers anew; gradients are summed on each device first, and reduced with the last.
    Beside what is held come activations, and a layer's parameters while they are gathered.
    """
    everything, part = 2 * parameters + slots, (devices - 1) / devices
    if strategy is Strategy.DATA_PARALLEL:
        return Traffic(held=everything, sent=round(2 * part * parameters))
    if strategy is Strategy.FULLY_SHARDED:
        gathered = 2 * micro_batches + 1
        return Traffic(held=-(-everything // devices), sent=round(gathered * part * parameters))
    return Traffic(held=-(-everything // devices), sent=None)
