"""What a training step on several devices costs each: memory held, bytes sent. From the maths; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from benchbench.backends.base import Backend
from benchbench.model.case import Case, Dtype
from benchbench.model.placement import Strategy
from benchbench.model.world import Spread
from benchbench.plan.costs import instance
from benchbench.registry import load_class
from benchbench.workloads.base import Training
from benchbench.workloads.chain import BlockChain, Link, cut_chain
from benchbench.workloads.pipeline import PipelinedTraining


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Of one device, in bytes. `held`: parameters, their gradients, and what the optimizer keeps of them.

    `sent`: in a step, by the ring that nccl-tests counts by. None: the framework's partitioner decides.
    `bubble`: the share of a step in which a stage of a pipeline has nothing to compute.
    """

    held: int
    sent: int | None
    bubble: float | None = None


def traffic(case: Case) -> Traffic | None:
    """The traffic of a case; None on one device, or where its parameters are not counted."""
    sized = instance(case)
    if case.placement.devices == 1 or not isinstance(sized, Training):
        return None
    if isinstance(sized, PipelinedTraining) and sized.is_pipeline:
        backend = load_class("benchbench.backends", case.backend, Backend)  # type: ignore[type-abstract]
        of_framework = scan_traffic if backend.spread is Spread.DEVICES else pipeline_traffic
        return of_framework(sized, case.computes_in)
    parameters, slots = sized.held(case.computes_in)
    if not parameters:
        return None
    placement, micro_batches = case.placement, int(case.params.get("accumulate", 1))
    return traffic_of(placement.strategy, placement.devices, parameters, slots, micro_batches)


def traffic_of(
    strategy: Strategy, devices: int, parameters: int, slots: int, micro_batches: int = 1
) -> Traffic:
    """The traffic of so many bytes of `parameters`, and of `slots`, the optimizer's state of them.

    Data-parallel, gradients are all-reduced: 2 (n − 1)/n of their bytes leave each device (nccl-tests,
    doc/PERFORMANCE.md). Fully sharded, each holds 1/n of everything; parameters are gathered forward and
    again backward, gradients are reduce-scattered: (n − 1)/n each (Rajbhandari et al. 2020, "ZeRO", 7.2.2).
    Every micro-batch gathers anew; gradients are summed on each device first, and reduced with the last.
    Not counted: activations, and a layer's parameters while they are gathered.
    """
    everything, part = 2 * parameters + slots, (devices - 1) / devices
    if strategy is Strategy.DATA_PARALLEL:
        return Traffic(held=everything, sent=round(2 * part * parameters))
    if strategy is Strategy.FULLY_SHARDED:
        gathered = 2 * micro_batches + 1
        return Traffic(held=-(-everything // devices), sent=round(gathered * part * parameters))
    return Traffic(held=-(-everything // devices), sent=None)


def pipeline_traffic(work: PipelinedTraining, dtype: Dtype) -> Traffic:
    """The most that any stage holds, and the most that any sends, as torch cuts the network.

    A stage sends its output of each sample to the next stage, the gradient of its input back to the one
    before, and its part of the all-reduce of gradients of parameters that several stages share.
    """
    stages = cut_chain(work.links(), work.placement.devices)
    sizes = {name: prod(w.shape) for name, w in work.weights().items() if w.is_learnt}
    own = [{name for link in links for name in link.weights} & set(sizes) for links in stages]
    holders = Counter(name for names in own for name in names)
    itemsize, copies = dtype.storage.itemsize, 2 + len(work.update.slots)
    shared = [sum(2 * sizes[n] * (holders[n] - 1) / holders[n] for n in names) for names in own]
    passed = _passed_on(stages)
    return Traffic(
        held=itemsize * copies * max(sum(sizes[name] for name in names) for names in own),
        sent=itemsize * max(round(work.batch * a + b) for a, b in zip(passed, shared, strict=True)),
        bubble=work.bubble,
    )


def scan_traffic(work: PipelinedTraining, dtype: Dtype) -> Traffic:
    """The same in JAX: devices have equally many blocks, and all have the layers before and after these."""
    assert isinstance(work, BlockChain)
    prefixes = tuple(f"{block}." for block in work.blocks)
    sizes = {name: prod(w.shape) for name, w in work.weights().items() if w.is_learnt}
    blocks = sum(size for name, size in sizes.items() if name.startswith(prefixes))
    held = sum(sizes.values()) - blocks + blocks // work.placement.devices
    copies = 2 + len(work.update.slots)
    return Traffic(held=dtype.storage.itemsize * copies * held, sent=None, bubble=work.bubble)


def _passed_on(stages: Sequence[Sequence[Link]]) -> list[int]:
    """Elements that each stage sends of a sample: forward to the next, and back to the one before."""
    handed_on = [links[-1].outputs for links in stages[:-1]]
    return [onwards + back for onwards, back in zip([*handed_on, 0], [0, *handed_on], strict=True)]
