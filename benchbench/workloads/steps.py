"""Steps of networks: inference and training, including pipelined and adversarial training.

`_programs/` has mixed precision, the loss, the backward pass, the update and the tensors for verification, a
file per framework. A network's file declares its steps:

    @dataclass(frozen=True)
    class Resnet50Train(TrainingStep, Resnet50):
        summary = "train ResNet-50 v1.5"
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchbench.arrays import Array, Floats, Indices
from benchbench.errors import UsageError, unknown
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.model.note import NoteKind, note
from benchbench.model.placement import Placement, Strategy
from benchbench.workloads._forward import FunctionalForward
from benchbench.workloads._layers import Passes, counted_cost, parameters_in, training_passes
from benchbench.workloads._losses import Adversarial, Objective
from benchbench.workloads._optimizers import Optimizer, optimizer_named, refusal
from benchbench.workloads._programs import jax, jax_pipeline, tensorflow, torch, torch_pipeline
from benchbench.workloads._programs.numpy import ReferenceForward
from benchbench.workloads._programs.numpy import training as reference_training
from benchbench.workloads.base import (
    DeviceContext,
    Draw,
    Operation,
    Program,
    Step,
    Training,
    reference_of_samples,
)
from benchbench.workloads.network import BlockChain, Chain, Network

if TYPE_CHECKING:
    import numpy as np

    from benchbench.workloads.base import Arrays

STRATEGIES: dict[str, tuple[Strategy, ...]] = {  # framework → strategies in `_programs/` for training
    "torch": (Strategy.DATA_PARALLEL, Strategy.FULLY_SHARDED),
    "jax": (Strategy.DATA_PARALLEL, Strategy.FULLY_SHARDED, Strategy.TENSOR_PARALLEL),
    "tensorflow": (Strategy.DATA_PARALLEL,),
}
SUM_MOVES = 3  # transfers of a gradient that is added: the gradient and the sum are read, the sum written
# Tolerance as a multiple of the largest drawn error. Depth amplifies differences between draws.
DRAWS_TOLERATED = 6.0
GENERATOR, DISCRIMINATOR = "generator", "discriminator"  # prefixes of their weights' names
SCHEDULES = ("gpipe", "1f1b")  # every framework has the first
MICRO_BATCHES_PER_STAGE = 4  # enough for a small bubble: Huang et al. 2019, "GPipe", 2.3
VERIFIED_PER_STAGE = 2  # micro-batches per stage for verification; more would take no other path


@dataclass(frozen=True)
class Inference(Network, Operation):
    """The output without gradients. Batch norm uses running statistics; only compilers fold it."""

    def cost(self, dtype: Dtype) -> Cost:
        return replace(counted_cost(self.passes(), self.batch, dtype), items=self.items, item=self.item)

    def sample(self, source: np.random.Generator, count: int) -> Indices:
        """Elements of one sample's output: samples do not interact, and each costs a forward pass."""
        index = super().sample(source, count)
        index[:, 0] = index[0, 0]
        return index

    draws_tolerated = DRAWS_TOLERATED
    samples_apart = True

    def forward(self, ops: Any, arrays: Any) -> Any:
        weights = {name: arrays[name] for name in self.weights()}
        return self.apply(ReferenceForward(ops, weights), *(arrays[name] for name in self.input_names))

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        """Outputs of the sampled elements of the batch only."""
        return reference_of_samples(self, arrays, index, self.input_names)

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """`nn.Module` in inference mode, channels last."""
        return torch.inference(self, context, arrays)

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """TensorFlow operations on variables, NHWC."""
        return tensorflow.inference(self, context, arrays)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Functions of the weights, NHWC."""
        return jax.inference(self, context, arrays)


@dataclass(frozen=True)
class TrainingStep(Network, Training):
    """Forward pass, backward pass, and an optimizer's update."""

    optimizer: str = "momentum"
    accumulate: int = 1
    added = frozenset({"optimizer", "accumulate"})

    def __post_init__(self) -> None:
        super().__post_init__()
        optimizer_named(self.optimizer)

    @property
    def update(self) -> Optimizer:
        """The optimizer with this name."""
        return optimizer_named(self.optimizer)

    @classmethod
    def strategies(cls, framework: str) -> Sequence[Strategy]:
        """Strategies of `_programs/`; in torch also tensor parallelism if the network has a plan."""
        planned = framework == "torch" and cls.tensor_parallel
        return (*STRATEGIES.get(framework, ()), *([Strategy.TENSOR_PARALLEL] if planned else []))

    def small(self) -> Self:
        """Each device has as many samples as a single one, rounded up to equal micro-batches."""
        tiny, count = self.tiny(), self.accumulate
        samples = math.ceil(tiny.batch / count) * count
        sizes: dict[str, Any] = {"batch": samples * self.placement.devices}
        return replace(tiny, **sizes).divided(self.placement, self.rank, self.replicas)

    def refuses(self, dtype: Dtype) -> str:
        """Also refuse dtypes that the optimizer does not support, and batches that cannot be divided."""
        devices = self.placement.devices if self.placement.strategy.divides_batch else 1
        if self.batch % (devices * self.accumulate):
            return f"a batch of {self.batch} cannot be divided {_division_text(devices, self.accumulate)}"
        return super().refuses(dtype) or refusal(self.optimizer, dtype)

    def cost(self, dtype: Dtype) -> Cost:
        """Cost of the layers (see `counted_cost`) plus several transfers of every parameter by the optimizer.

        Each micro-batch reads the weights again, and each but the first adds its gradients to their sum.
        """
        cost, count = counted_cost(self.passes(), self.batch, dtype), self.accumulate
        micro_batch = counted_cost(self.passes(), self.batch // count, dtype)
        moves = self.update.moves + SUM_MOVES * (count - 1)
        update_bytes = dtype.storage.itemsize * moves * parameters_in(self.layers())
        return replace(cost, bytes=count * micro_batch.bytes + update_bytes, items=self.items, item=self.item)

    @property
    def backward_passes(self) -> int:
        """One per micro-batch and objective."""
        return self.accumulate * len(self.objectives)

    def passes(self) -> Passes:
        return training_passes(self.layers(), self.first_layers())

    def input_arrays(self, draw: Draw) -> dict[str, Array]:
        arrays = self.inputs(draw)
        for objective in self.objectives:
            arrays |= objective.loss.targets(draw, self.output_shape)
        return arrays

    @property
    def roundings(self) -> int:
        """Roundings on the longest path, forward and backward."""
        return 2 * super().roundings

    @property
    def idle(self) -> set[str]:
        """Parameters with a partly zero gradient, if the optimizer divides it by its own size."""
        averages = self.update.averages
        return {name for name, weight in self.weights().items() if averages and weight.is_partly_idle}

    def steps(self, arrays: Arrays, ops: Any = None) -> Iterator[Step]:
        return reference_training(self, self.update, arrays, ops)

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """`nn.Module` and torch.optim, channels last."""
        return torch.training(self, self.update, context, arrays)

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """TensorFlow operations on variables, NHWC."""
        return tensorflow.training(self, self.update, context, arrays)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Functions of the parameters, NHWC."""
        return jax.training(self, self.update, context, arrays)


@dataclass(frozen=True)
class PipelinedTraining(TrainingStep, Chain):
    """A training step that can run as a pipeline of `accumulate` micro-batches.

    If `accumulate` is 1, a pipeline has up to four micro-batches per stage, as many as divide the batch.
    """

    schedule: str = SCHEDULES[0]  # of a pipeline's micro-batches
    added = frozenset({"schedule"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.schedule not in SCHEDULES:
            raise UsageError(
                f"No schedule named {self.schedule!r}.", unknown("schedules", self.schedule, [*SCHEDULES])
            )

    @classmethod
    def strategies(cls, framework: str) -> Sequence[Strategy]:
        """torch can cut any chain into stages, JAX only chains of equal blocks."""
        cuts = framework == "torch" or (framework == "jax" and issubclass(cls, BlockChain))
        return (*super().strategies(framework), *([Strategy.PIPELINE] if cuts else []))

    @property
    def is_pipeline(self) -> bool:
        """True if each device has a stage."""
        return self.placement.strategy is Strategy.PIPELINE

    def divided(self, placement: Placement, rank: int | None = None, replicas: int = 1) -> Self:
        """A pipeline also gets its number of micro-batches."""
        instance = super().divided(placement, rank, replicas)
        if instance.is_pipeline and self.accumulate == 1:
            max_micro_batches = MICRO_BATCHES_PER_STAGE * placement.devices
            object.__setattr__(instance, "accumulate", gcd(self.batch, max_micro_batches))
        return instance

    def small(self) -> Self:
        """A pipeline has a few micro-batches, each half as large as the small batch of one device."""
        if not self.is_pipeline:
            return super().small()
        devices, tiny = self.placement.devices, self.tiny().lengthened(self.placement.devices)
        count = min(self.accumulate, VERIFIED_PER_STAGE * devices)
        sizes: dict[str, Any] = {"batch": count * max(1, tiny.batch // 2), "accumulate": count}
        return replace(tiny, **sizes).divided(self.placement, self.rank, self.replicas)

    def refuses(self, dtype: Dtype) -> str:
        """Also refuse more stages than layers, and a schedule without a pipeline."""
        if self.schedule != SCHEDULES[0] and not self.is_pipeline:
            return f"schedule={self.schedule} needs a pipeline"
        if self.is_pipeline:
            links, stages, count = len(self.links()), self.placement.devices, self.accumulate
            if links < stages:
                return f"its {links} layers or blocks cannot be divided into {stages} stages"
            if self.schedule == "1f1b" and count < stages:
                return f"schedule=1f1b needs a micro-batch for each of {stages} stages, but there are {count}"
        return super().refuses(dtype)

    @property
    def bubble(self) -> float:
        """Share of a step in which a stage is idle, if all stages take equally long.

        (p − 1) / (m + p − 1) for p stages and m micro-batches, with either schedule: Huang et al. 2019,
        "GPipe", 2.3; Narayanan et al. 2021, 2.2.
        """
        idle = self.placement.devices - 1
        return idle / (self.accumulate + idle)

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        if not self.is_pipeline:
            return super().build_torch(context, arrays)
        program = torch_pipeline.pipelined_training(self, self.update, self.schedule, context, arrays)
        return self._with_bubble_note(program)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        if not self.is_pipeline:
            return super().build_jax(context, arrays)
        assert isinstance(self, BlockChain)  # see `strategies`
        program = jax_pipeline.pipelined_scan(self, self.update, self.schedule, context, arrays)
        return self._with_bubble_note(program)

    def _with_bubble_note(self, program: Program) -> Program:
        stages, count = self.placement.devices, self.accumulate
        bubble = note(NoteKind.PIPELINE, stages=stages, micro_batches=count, share=self.bubble)
        return replace(program, notes=(*program.notes, bubble))


@dataclass(frozen=True)
class AdversarialStep(TrainingStep):
    """The discriminator's update, then the generator's.

    Goodfellow et al. 2014, "Generative adversarial nets", algorithm 1 with k = 1: noise is drawn for each
    update, and the generator maximises the updated discriminator's probability of real images (section 3).
    The network's forward pass is the generator's. A subclass adds that of the discriminator, and its layers
    after the generator's.
    """

    input_names: ClassVar[tuple[str, ...]] = ("images", "noise", "new_noise")
    objectives = (
        Objective(Adversarial(real=(True, False)), DISCRIMINATOR),
        Objective(Adversarial(real=(True,)), GENERATOR),
    )

    @classmethod
    def strategies(cls, framework: str) -> Sequence[Strategy]:  # noqa: ARG003 - none in any framework
        """None: replicas cannot reduce the gradients of two updates of one module."""
        return ()

    def passes(self) -> Passes:
        """4 G + 8 D − g₁ − 2 d₁, for the forward passes G and D and their first layers g₁ and d₁.

        The discriminator's update generates images (G) and takes three passes over real and generated ones (6
        D). The generator's update generates images, classifies them, and goes back to its own weights (3 G +
        2 D). First layers need no gradient of their inputs, except the discriminator's in the generator's
        update.
        """
        generator, discriminator = self._layers_of(GENERATOR), self._layers_of(DISCRIMINATOR)
        passes = [*((4, layer) for layer in generator), *((8, layer) for layer in discriminator)]
        return [*passes, (-1, generator[0]), (-2, discriminator[0])]

    def _layers_of(self, player: str) -> list[Any]:
        return [layer for layer in self.layers() if any(name.startswith(player) for name in layer.weights())]

    @abstractmethod
    def judge(self, nn: FunctionalForward, images: Any) -> Any:
        """Logits of the images being real."""

    def apply(self, nn: FunctionalForward, *inputs: Any, learner: str, **options: Any) -> tuple[Any, ...]:
        """Logits: of real and generated images, or of newly generated ones."""
        images, noise, new_noise = inputs

        def generate(noise: Any) -> Any:
            return nn.channels_first(super(AdversarialStep, self).apply(nn, noise))  # type: ignore[safe-super]

        if learner == GENERATOR:
            return (self.judge(nn, generate(new_noise)),)
        generated = nn.constant(generate(noise))
        return self.judge(nn, images), self.judge(nn, generated)


def torch_adversaries(generator: Any, discriminator: Any) -> Any:
    """A module of both networks; `learner` selects the forward pass."""
    import torch
    from torch import Tensor, nn

    class Adversaries(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.generator, self.discriminator = generator, discriminator

        def forward(
            self, images: Tensor, noise: Tensor, new_noise: Tensor, learner: str
        ) -> tuple[Tensor, ...]:
            if learner == GENERATOR:
                return (self.discriminator(self.generator(new_noise)),)
            with torch.no_grad():
                generated = self.generator(noise)
            return self.discriminator(images), self.discriminator(generated)

    return Adversaries()


def _division_text(devices: int, micro_batches: int) -> str:
    """Description of how a batch is divided."""
    if micro_batches == 1:
        return f"among {devices} devices"
    return f"into {micro_batches} micro-batches" + (f" on each of {devices} devices" if devices > 1 else "")
