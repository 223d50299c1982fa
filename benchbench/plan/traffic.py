"""What a training step on several devices costs each: memory held, bytes sent. From the maths; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from benchbench.backends.base import Backend
from benchbench.model.case import Case, Dtype
from benchbench.model.placement import Strategy
from benchbench.model.world import Spread
from benchbench.plan.costs import instance
from benchbench.registry import load_class
from benchbench.workloads._layers import Weight
from benchbench.workloads.network import (
    BlockChain,
    Division,
    Link,
    cut_chain,
    division_of,
    marked_axis,
    planned_axis,
)
from benchbench.workloads.steps import PipelinedTraining, TrainingStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What one device holds and sends, in bytes.

    `held`: parameters, their gradients, and what the optimizer keeps of them.
    `sent`: in a step, by the ring that nccl-tests counts by. None: sums of activations, or the framework's
    partitioner decides.
    `bubble`: the share of a step in which a stage of a pipeline has nothing to compute.
    """

    held: int
    sent: int | None
    bubble: float | None = None


def traffic(case: Case) -> Traffic | None:
    """The traffic of a case; None on one device, or where its parameters are not counted."""
    work = instance(case)
    if case.placement.devices == 1 or not isinstance(work, TrainingStep):
        return None
    backend = load_class("benchbench.backends", case.backend, Backend)  # type: ignore[type-abstract]
    if isinstance(work, PipelinedTraining) and work.is_pipeline:
        of_framework = scan_traffic if backend.spread is Spread.DEVICES else pipeline_traffic
        return of_framework(work, case.computes_in)
    return divided_traffic(work, case.computes_in, backend)


def divided_traffic(work: TrainingStep, dtype: Dtype, backend: type[Backend]) -> Traffic:
    """The most that any device holds and sends of a step whose batch or layers are divided.

    Not counted: activations, copies that are reduced, and a layer's parameters while they are gathered.
    """
    learnt = {name: weight for name, weight in work.weights().items() if weight.is_learnt}
    held = {name: _elements_held(work, name, weight, backend) for name, weight in learnt.items()}
    gradients = held | _whole_gradients(work, learnt, backend)
    elements = (1 + len(work.update.slots)) * sum(held.values()) + sum(gradients.values())
    itemsize, sent = dtype.storage.itemsize, _elements_sent(work, held, backend)
    return Traffic(held=itemsize * elements, sent=None if sent is None else round(itemsize * sent))


def _elements_sent(work: TrainingStep, held: Mapping[str, int], backend: type[Backend]) -> float | None:
    """Elements a device sends in a step, holding so much of each parameter; None: the compiler decides.

    Data-parallel, gradients are all-reduced: 2 (n − 1)/n of them leave each device (nccl-tests,
    doc/PERFORMANCE.md), once where micro-batches are summed before, and in JAX's scan after each. Fully
    sharded, torch gathers parameters forward and again backward, and reduce-scatters gradients: (n − 1)/n
    each (Rajbhandari et al. 2020, "ZeRO", 7.2.2). Every micro-batch gathers anew; gradients are reduced with
    the last. What is in no layer FSDP keeps from forward to back.
    """
    devices, count, strategy = work.placement.devices, work.accumulate, work.placement.strategy
    in_xla = backend.spread is Spread.DEVICES and backend.framework != "tensorflow"
    if strategy is Strategy.DATA_PARALLEL:
        if in_xla and count > 1 and backend.framework != "jax":
            return None
        return 2 * (devices - 1) / devices * sum(held.values()) * (count if in_xla else 1)
    if strategy is Strategy.FULLY_SHARDED and not in_xla:
        one_by_one = in_layers(work, held)
        times = {name: count * (2 if name in one_by_one else 1) + 1 for name in held}
        return (devices - 1) * sum(times[name] * size for name, size in held.items())
    return None


def _elements_held(work: TrainingStep, name: str, weight: Weight, backend: type[Backend]) -> int:
    """The elements of a weight on the device that has most of it."""
    placement, shape = work.placement, weight.shape
    if backend.spread is Spread.DEVICES:
        shape = weight.shape_channels_last if backend.framework != "torch" else shape
        outputs = 0 if backend.framework == "torch" else len(shape) - 1
        axis = marked_axis(placement.strategy, shape, placement.devices, outputs)
    elif placement.strategy is Strategy.TENSOR_PARALLEL:
        axis = planned_axis(work.tensor_parallel, name, len(shape))
    else:
        axis = 0 if placement.strategy is Strategy.FULLY_SHARDED else None
    if axis is None:
        return prod(shape)
    return prod(shape) // shape[axis] * -(-shape[axis] // placement.devices)


def _whole_gradients(
    work: TrainingStep, learnt: Mapping[str, Weight], backend: type[Backend]
) -> dict[str, int]:
    """Elements of gradients that torch leaves whole though it divides the parameters: of a table's rows.

    Not of a table that also gives the logits: their part of its gradient is divided, and so is the sum.
    """
    plan = work.tensor_parallel
    if work.placement.strategy is not Strategy.TENSOR_PARALLEL or backend.spread is Spread.DEVICES:
        return {}
    by_logits = {name for name in learnt if division_of(plan, name) is Division.LOGITS}
    if not any(len(learnt[name].shape) > 1 for name in by_logits):
        return {}
    tables = [name for name in learnt if division_of(plan, name) is Division.VOCABULARY]
    return {name: prod(learnt[name].shape) for name in tables}


def in_layers(work: TrainingStep, names: Collection[str]) -> set[str]:
    """The parameters that torch gathers layer by layer: of members of lists, or of a whole flat network."""
    return {name for name in names if work.flat or any(part.isdigit() for part in name.split("."))}


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
