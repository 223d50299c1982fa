"""An optimizer's update alone: all parameters of a network moved once by gradients that are there already."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

from benchbench import registry
from benchbench.arrays import Array
from benchbench.errors import UsageError, unknown
from benchbench.model.case import AMP, Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads._layers import Weight
from benchbench.workloads._optimizers import Optimizer, optimizer_named, refusal
from benchbench.workloads.base import Draw, Program, Step, Training
from benchbench.workloads.steps import TrainingStep

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext

TRAIN = "_train"  # end of the name of a network's training step
DRAWN = 2**20  # elements of a tensor; the rest repeats them, since drawing takes longer than updating
SMALL = {
    "weight": Weight(shape=(37, 19), scale=0.1),
    "bias": Weight(shape=(37,), scale=0.1),
}


@dataclass(frozen=True)
class Update(Training):
    """One update of the network that `networks/` trains under the name `of`, or of a few `small` tensors.

    `fused`: by the framework's one kernel for it, where it has one; else by its plain operations, which are
    torch.optim's default and what Keras' optimizers do. Parameters are as PyTorch has them everywhere.
    """

    optimizer: str = "adam"
    of: str = "resnet50"
    fused: bool = True

    summary = "an optimizer's update of all parameters of a network"
    has_loss = False

    def __post_init__(self) -> None:
        super().__post_init__()
        optimizer_named(self.optimizer)
        parameters_of(self.of)

    @property
    def rule(self) -> Optimizer:
        """The optimizer of that name."""
        return optimizer_named(self.optimizer)

    @property
    def parameters(self) -> dict[str, Weight]:
        """Parameters by PyTorch's names."""
        return parameters_of(self.of)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the last parameter, which a step returns."""
        return list(self.parameters.values())[-1].shape

    @property
    def reduction(self) -> int:
        return 1

    def refuses(self, dtype: Dtype) -> str:
        """The optimizer's reason, or that there are no products: TF32 and mixed precision need them."""
        if dtype in (Dtype.TF32, Dtype.FLOAT8, *AMP):
            return f"an update multiplies no matrices: {dtype} would be float32"
        return refusal(self.optimizer, dtype)

    def cost(self, dtype: Dtype) -> Cost:
        """Gradient read, parameter and state read and written; no FLOPs; an item is a parameter."""
        count = sum(prod(weight.shape) for weight in self.parameters.values())
        size = dtype.storage.itemsize
        return Cost(flops=0, bytes=self.rule.moves * size * count, items=count, item="parameter")

    def tiny(self) -> Update:
        return replace(self, of="small")

    def arrays(self, draw: Draw) -> dict[str, Array]:
        """The parameters, and a gradient N(0, 1) of each."""
        import numpy as np

        def drawn(name: str, shape: tuple[int, ...], **normal: float) -> Array:
            return np.resize(draw.normal(name, min(prod(shape), DRAWN), **normal), shape)

        weights = {
            name: drawn(name, weight.shape, scale=weight.scale, mean=weight.mean)
            for name, weight in self.parameters.items()
        }
        gradients = {_gradient(name): drawn(_gradient(name), array.shape) for name, array in weights.items()}
        return {**weights, **gradients}

    def is_input(self, name: str) -> bool:
        return name not in self.parameters

    def steps(self, arrays: Arrays, ops: Any = None) -> Iterator[Step]:
        from benchbench.workloads._programs.numpy import updates

        weights = {name: arrays[name].astype(float) for name in self.parameters}
        gradients = {name: arrays[_gradient(name)].astype(float) for name in weights}
        return updates(self.rule, weights, gradients, ops)

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A program that calls torch.optim."""
        rule, weights = self.rule, self._held(context, arrays)
        parameters = [tensor.requires_grad_() for tensor in weights.values()]
        update = rule.torch(parameters, fused=self.fused)

        def step(*gradients: Any) -> Any:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            update.step()
            return parameters[-1].detach()

        def state() -> dict[str, Any]:
            states = {name: update.state[parameter] for name, parameter in weights.items()}
            return {
                f"{name} ({slot})": values[key]
                for name, values in states.items()
                for slot, key in rule.slots.items()
            }

        return Program(
            step,
            self._given(context, arrays),
            parameters=lambda: weights,
            gradients=state if rule.slots else None,
        )

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """The kernels of TensorFlow's own optimizers, or the rule on variables, as Keras has it."""
        import tensorflow as tf

        rule = self.rule
        with tf.device(context.device):
            weights = {name: tf.Variable(array) for name, array in self._held(context, arrays).items()}
            slots = {
                name: {slot: tf.Variable(tf.zeros_like(p)) for slot in rule.slots}
                for name, p in weights.items()
            }
            count = tf.Variable(0, dtype=tf.int64) if rule.counts else None
        update = rule.tensorflow if self.fused else rule.tensorflow_plainly

        def step(*gradients: Any) -> Any:
            t = None if count is None else count.assign_add(1)
            for (name, p), gradient in zip(weights.items(), gradients, strict=True):
                update(t, p, gradient, slots[name])
            return p.read_value()

        return Program(
            step,
            self._given(context, arrays),
            parameters=lambda: weights,
            gradients=(lambda: _named(slots)) if rule.slots else None,
        )

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """The rule, as a function of parameters and state that XLA fuses."""
        import jax.numpy as jnp

        rule, weights = self.rule, self._held(context, arrays)
        *_, name_of_last = weights

        def step(now: Any, slots: Any, count: Any, *gradients: Any) -> Any:
            t = count + 1 if rule.counts else None
            after = {
                name: rule.rule(jnp, t, now[name], gradient, slots[name])
                for name, gradient in zip(self.parameters, gradients, strict=True)
            }
            moved, kept = ({name: both[part] for name, both in after.items()} for part in (0, 1))
            return moved, kept, t, moved[name_of_last]

        slots = {name: {slot: jnp.zeros_like(p) for slot in rule.slots} for name, p in weights.items()}
        return Program(
            step,
            self._given(context, arrays),
            (weights, slots, jnp.int32(0) if rule.counts else None),
            parameters=lambda now, _slots, _count: now,
            gradients=(lambda _now, kept, _count: _named(kept)) if rule.slots else None,
        )

    def _held(self, context: DeviceContext, arrays: Arrays) -> dict[str, Any]:
        return {name: context.put(arrays[name]) for name in self.parameters}

    def _given(self, context: DeviceContext, arrays: Arrays) -> tuple[Any, ...]:
        return tuple(context.put(arrays[_gradient(name)]) for name in self.parameters)

    def lacks(self, backend: str, dtype: Dtype) -> str:
        """Reason why a backend has only one form of the update, which is called fused."""
        if self.fused:
            return ""
        if backend in ("jax", "torch_xla"):
            return "XLA fuses an update's operations by itself"
        if backend not in self.rule.fused_in:
            return f"{backend} has no kernel for {self.optimizer}: fused=true is the same"
        return ""


def parameters_of(network: str) -> dict[str, Weight]:
    """Learnt parameters by PyTorch's names. Raises UsageError."""
    if network == "small":
        return SMALL
    training = registry.find_class(
        registry.WORKLOADS,
        f"{network}{TRAIN}",
        TrainingStep,  # type: ignore[type-abstract]
    )
    if training:
        return {name: weight for name, weight in training().weights().items() if weight.is_learnt}
    names = registry.entry_names(registry.WORKLOADS)
    networks = [name.removesuffix(TRAIN) for name in names if name.endswith(TRAIN)]
    hint = unknown("networks", network, ["small", *networks])
    raise UsageError(f"No network named {network!r} whose parameters are updated.", hint)


def _gradient(name: str) -> str:
    return f"gradient of {name}"


def _named(slots: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {f"{name} ({slot})": value for name, values in slots.items() for slot, value in values.items()}
