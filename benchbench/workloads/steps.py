"""What is measured of a network: inference, and a step of training.

Casting for mixed precision, the loss, the way back, the update, and what verification reads of them are in
`_programs/`, a framework each. A file says which steps its network has:

    @dataclass(frozen=True)
    class Resnet50Train(TrainingStep, Resnet50):
        summary = "train ResNet-50 v1.5"
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from benchbench.arrays import Array, Floats, Indices
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.model.placement import Strategy
from benchbench.workloads._layers import Passes, counted_cost, parameters_in, training_passes
from benchbench.workloads._optimizers import Optimizer, optimizer_named, refusal
from benchbench.workloads._programs import jax, tensorflow, torch
from benchbench.workloads.base import (
    DeviceContext,
    Draw,
    Operation,
    Program,
    Step,
    Training,
    reference_of_samples,
)
from benchbench.workloads.network import Network

if TYPE_CHECKING:
    import numpy as np

    from benchbench.workloads.base import Arrays

STRATEGIES: dict[str, tuple[Strategy, ...]] = {  # framework → how `_programs/` divides a training step
    "torch": (Strategy.DATA_PARALLEL, Strategy.FULLY_SHARDED),
    "jax": (Strategy.DATA_PARALLEL, Strategy.FULLY_SHARDED, Strategy.TENSOR_PARALLEL),
    "tensorflow": (Strategy.DATA_PARALLEL,),
}
SUM_MOVES = 3  # times a gradient's bytes move where it is added: it and the sum are read, the sum written
DRAWS_TOLERATED = 6.0  # times the largest error of a draw: depth amplifies what differs between them


@dataclass(frozen=True)
class Inference(Network, Operation):
    """The output, without gradients. Batch norm uses running statistics; only a compiler folds it."""

    def cost(self, dtype: Dtype) -> Cost:
        return replace(counted_cost(self.passes(), self.batch, dtype), items=self.items, item=self.item)

    def arrays(self, draw: Draw) -> dict[str, Array]:
        """Inputs, and the weights by PyTorch's names."""
        return {**self.input_arrays(draw), **self.drawn_weights(draw)}

    def input_arrays(self, draw: Draw) -> dict[str, Array]:
        return self.inputs(draw)

    def sample(self, source: np.random.Generator, count: int) -> Indices:
        """Elements of one sample's output: samples do not meet, and each costs a forward pass."""
        index = super().sample(source, count)
        index[:, 0] = index[0, 0]
        return index

    draws_tolerated = DRAWS_TOLERATED

    def forward(self, ops: Any, arrays: Any) -> Any:
        weights = {name: arrays[name] for name in self.weights()}
        return self.numpy(ops, weights, *(arrays[name] for name in self.input_names), training=False)

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        """Outputs of the samples that are asked for, and of no other."""
        return reference_of_samples(self, arrays, index, self.input_names)

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """`nn.Module` in inference mode, channels last."""
        return torch.inference(self, context, arrays)

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """TensorFlow's operations on variables, NHWC."""
        return tensorflow.inference(self, context, arrays)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Functions of the weights, NHWC."""
        return jax.inference(self, context, arrays)


@dataclass(frozen=True)
class TrainingStep(Network, Training):
    """Forward, backward, and an optimizer's update."""

    optimizer: str = "momentum"
    accumulate: int = 1
    added = frozenset({"optimizer", "accumulate"})

    def __post_init__(self) -> None:
        """Raise UsageError also for an optimizer that is not in the table."""
        super().__post_init__()
        optimizer_named(self.optimizer)

    @property
    def update(self) -> Optimizer:
        """The optimizer of that name."""
        return optimizer_named(self.optimizer)

    @classmethod
    def strategies(cls, framework: str) -> Sequence[Strategy]:
        """`_programs/` tells, a framework each; in torch, layers are divided by the network's plan."""
        planned = framework == "torch" and cls.tensor_parallel
        return (*STRATEGIES.get(framework, ()), *([Strategy.TENSOR_PARALLEL] if planned else []))

    def held(self, dtype: Dtype) -> tuple[int, int]:
        """Bytes of the learnt weights, and of as many again for each of the optimizer's slots."""
        parameters = dtype.storage.itemsize * parameters_in(self.layers())
        return parameters, parameters * len(self.update.slots)

    def small(self) -> Self:
        """A device has as many samples as one alone, or some more that micro-batches can share equally."""
        tiny, count = self.tiny(), self.accumulate
        samples = math.ceil(tiny.batch / count) * count
        sizes: dict[str, Any] = {"batch": samples * self.placement.devices}
        return replace(tiny, **sizes).divided(self.placement, self.rank, self.replicas)

    def refuses(self, dtype: Dtype) -> str:
        """What the optimizer cannot keep, and a batch that cannot be divided."""
        devices = self.placement.devices if self.placement.strategy.divides_batch else 1
        if self.batch % (devices * self.accumulate):
            return f"a batch of {self.batch} cannot be divided {_parts(devices, self.accumulate)}"
        return refusal(self.optimizer, dtype)

    def cost(self, dtype: Dtype) -> Cost:
        """Counted over the layers, see `counted_cost`; the optimizer moves every parameter several times.

        Each micro-batch reads the weights anew, and each but the first adds its gradients to their sum.
        """
        cost, count = counted_cost(self.passes(), self.batch, dtype), self.accumulate
        micro_batch = counted_cost(self.passes(), self.batch // count, dtype)
        moves = self.update.moves + SUM_MOVES * (count - 1)
        moved = dtype.storage.itemsize * moves * parameters_in(self.layers())
        return replace(cost, bytes=count * micro_batch.bytes + moved, items=self.items, item=self.item)

    def passes(self) -> Passes:
        return training_passes(self.layers(), self.first_layers())

    def arrays(self, draw: Draw) -> dict[str, Array]:
        """Inputs, targets, and the weights by PyTorch's names."""
        return {**self.input_arrays(draw), **self.drawn_weights(draw)}

    def input_arrays(self, draw: Draw) -> dict[str, Array]:
        arrays = self.inputs(draw)
        for objective in self.objectives:
            arrays |= objective.loss.targets(draw, self.output_shape)
        return arrays

    @property
    def roundings(self) -> int:
        """Roundings on the longest path, forward and back."""
        return 2 * super().roundings

    @property
    def idle(self) -> set[str]:
        """Parameters partly without a gradient, where the optimizer divides it by its own size."""
        averages = self.update.averages
        return {name for name, weight in self.weights().items() if averages and weight.is_partly_idle}

    def steps(self, arrays: Arrays, ops: Any = None) -> Iterator[Step]:
        from benchbench.workloads._programs.numpy import training

        return training(self, self.update, arrays, ops)

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """`nn.Module` and torch.optim, channels last."""
        return torch.training(self, self.update, context, arrays)

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """TensorFlow's operations on variables, NHWC."""
        return tensorflow.training(self, self.update, context, arrays)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Functions of the parameters, NHWC."""
        return jax.training(self, self.update, context, arrays)


def _parts(devices: int, micro_batches: int) -> str:
    """How many parts a batch is divided into."""
    if micro_batches == 1:
        return f"among {devices} devices"
    return f"into {micro_batches} micro-batches" + (f" on each of {devices} devices" if devices > 1 else "")
