"""What recurrent layers share: sizes, counted cost, weights, the loop over steps; each is a file of its own.

A file gives the class of torch and of Keras, and what one step does to the state.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from math import sqrt
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchbench.arrays import Array, Floats, Indices
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads.base import Operation, Program, reference_of_samples

if TYPE_CHECKING:
    import numpy as np

    from benchbench.workloads.base import Arrays, DeviceContext, Draw

# Ours → PyTorch's, whose second bias is 0.
TORCH_NAMES = {"weight_ih": "weight_ih_l0", "weight_hh": "weight_hh_l0", "bias": "bias_ih_l0"}


@dataclass(frozen=True)
class Recurrent(Operation):
    """One layer over whole sequences, from a state of zeros; one bias; batch first."""

    length: int = 100
    batch: int = 64
    inputs: int = 512
    hidden: int = 256

    gates: ClassVar[int]  # each has rows in the weights
    states: ClassVar[int] = 1  # tensors that a step hands to the next, its output first
    multiplications_saved = 1.0
    draws_tolerated = 4.0
    samples_apart = True

    def cost(self, dtype: Dtype) -> Cost:
        """2·G·T·N·H·(I + H) FLOPs of G gates; input, weights and result move once; an item is a sequence."""
        moved = self.length * self.batch * (self.inputs + self.hidden)
        weights = self.gates * self.hidden * (self.inputs + self.hidden + 1)
        return Cost(
            flops=2 * self.gates * self.length * self.batch * self.hidden * (self.inputs + self.hidden),
            bytes=(moved + weights) * dtype.itemsize,
            items=self.batch,
            item="sequence",
        )

    @property
    def output_shape(self) -> tuple[int, int, int]:
        return self.batch, self.length, self.hidden

    def tiny(self) -> Self:
        return replace(self, length=7, batch=3, inputs=11, hidden=5)

    @property
    def longest_sum(self) -> int:
        """A gradient of the weights sums over all steps of all sequences."""
        return self.batch * self.length if self.differentiated else 0

    def rounding_size(self) -> Self:
        """One sequence, of steps enough: each forgets about half of what was before."""
        usual = {"length": 32, "batch": 1, "inputs": 512, "hidden": 256}
        return replace(self, **{name: min(getattr(self, name), size) for name, size in usual.items()})

    def arrays(self, draw: Draw) -> dict[str, Array]:
        """x, and the weights as in PyTorch, N(0, 1/3H): the variance that PyTorch draws them with."""
        rows, scale = self.gates * self.hidden, 1 / sqrt(3 * self.hidden)
        return {
            "x": draw.normal("x", self.batch, self.length, self.inputs),
            "weight_ih": draw.normal("weight_ih", rows, self.inputs, scale=scale),
            "weight_hh": draw.normal("weight_hh", rows, self.hidden, scale=scale),
            "bias": draw.normal("bias", rows, scale=scale),
        }

    @abstractmethod
    def step(self, ops: Any, given: Any, weight_hh: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """The next state by the reference's operations; `given`: what the weights make of the input."""

    @abstractmethod
    def jax_step(self, given: Any, weight_hh: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """The next state in JAX; `given` as for `step`."""

    def forward(self, ops: Any, arrays: Any) -> Any:
        x, weights, outputs = arrays["x"], dict(arrays), []
        state = (ops.np.zeros((len(x), self.hidden)),) * self.states
        for t in range(self.length):
            weights = ops.reused(weights)
            given = ops.linear(x[:, t], weights["weight_ih"], weights["bias"])
            state = self.step(ops, given, weights["weight_hh"], state)
            outputs.append(state[0])
        return ops.np.stack(outputs, axis=1)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """lax.scan over the steps; all steps' products with the input at once, before it."""
        import jax
        import jax.numpy as jnp

        def layer(x: Any, weight_ih: Any, weight_hh: Any, bias: Any) -> Any:
            def one(state: Any, given: Any) -> Any:
                state = self.jax_step(given, weight_hh, state)
                return state, state[0]

            state = (jnp.zeros((self.batch, self.hidden), x.dtype),) * self.states
            _, outputs = jax.lax.scan(one, state, (x @ weight_ih.T + bias).swapaxes(0, 1))
            return outputs.swapaxes(0, 1)

        names = "x", "weight_ih", "weight_hh", "bias"
        return Program(layer, tuple(context.put(arrays[name]) for name in names))

    def is_input(self, name: str) -> bool:
        """The weights belong to the layer."""
        return name == "x"

    def sample(self, source: np.random.Generator, count: int) -> Indices:
        """The elements of one sequence: sequences do not meet."""
        index = super().sample(source, count)
        index[:, 0] = index[0, 0]
        return index

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        """The elements of the sequences that are asked for."""
        return reference_of_samples(self, arrays, index, ["x"])


def torch_program(workload: Recurrent, kind: Any, context: DeviceContext, arrays: Arrays) -> Program:
    """A layer of `kind`, a class of torch.nn, that holds the weights; its second bias is 0."""
    import torch

    with torch.device("meta"):
        layer = kind(workload.inputs, workload.hidden, batch_first=True)
    state = {theirs: context.put(arrays[ours]) for ours, theirs in TORCH_NAMES.items()}
    state["bias_hh_l0"] = torch.zeros_like(state["bias_ih_l0"])
    layer.load_state_dict(state, assign=True)
    layer = layer.to(context.device).train(workload.differentiated).requires_grad_(workload.differentiated)
    layer.flatten_parameters()
    held = tuple(getattr(layer, name) for name in TORCH_NAMES.values())
    return Program(lambda x: layer(x)[0], (context.put(arrays["x"]),), held=held)


def keras_program(workload: Recurrent, kind: Any, context: DeviceContext, arrays: Arrays) -> Program:
    """A layer of `kind`, a class of keras.layers whose gates are in PyTorch's order."""
    weights = [arrays["weight_ih"].T, arrays["weight_hh"].T, arrays["bias"]]
    layer = keras_layer(workload, kind, context, weights)
    held = tuple(variable.value for variable in layer.trainable_variables)
    axes = {"weight_ih": (1, 0), "weight_hh": (1, 0)}
    return Program(layer, (context.put(arrays["x"]),), held=held, input_axes=axes)


def keras_layer(workload: Recurrent, kind: Any, context: DeviceContext, weights: list[Any]) -> Any:
    """A layer of `kind`, a class of keras.layers, that gives every step and holds the weights."""
    import tensorflow as tf

    given = {"kernel_initializer": "zeros", "recurrent_initializer": "zeros"}  # overwritten below
    with tf.device(context.device):
        layer = kind(workload.hidden, return_sequences=True, dtype=context.dtype.name, **given)
        layer.build((workload.batch, workload.length, workload.inputs))
        for variable, array in zip(layer.trainable_variables, weights, strict=True):
            variable.assign(context.put(array))
    return layer
