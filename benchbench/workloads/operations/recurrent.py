"""Recurrent layers over whole sequences, from a state of zeros.

A class names the layers of torch and Keras, and gives the next state after one step.
"""

from __future__ import annotations

import operator
from abc import abstractmethod
from dataclasses import dataclass, replace
from math import sqrt
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchbench.arrays import Array, Floats, Indices
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads.backward import Backward
from benchbench.workloads.base import Operation, Program, reference_of_samples

if TYPE_CHECKING:
    import numpy as np

    from benchbench.workloads.base import Arrays, DeviceContext, Draw

# Ours → PyTorch's, whose second bias is 0.
TORCH_NAMES = {"weight_ih": "weight_ih_l0", "weight_hh": "weight_hh_l0", "bias": "bias_ih_l0"}


@dataclass(frozen=True)
class Recurrent(Operation):
    """One layer with one bias; batch first."""

    length: int = 100
    batch: int = 64
    inputs: int = 512
    hidden: int = 256

    torch_layer: ClassVar[str]  # class of torch.nn, by cuDNN on a GPU
    keras_layer: ClassVar[str]  # class of keras.layers, by cuDNN on a GPU unless XLA compiles it
    gates: ClassVar[int]  # each has rows in the weights
    states: ClassVar[int] = 1  # tensors that a step hands to the next, its output first
    multiplications_saved = 1.0
    draws_tolerated = 4.0
    samples_apart = True

    def cost(self, dtype: Dtype) -> Cost:
        """2·G·T·N·H·(I + H) FLOPs of G gates; input, weights and result move once; an item is a sequence."""
        elements = self.length * self.batch * (self.inputs + self.hidden)
        weights = self.gates * self.hidden * (self.inputs + self.hidden + 1)
        return Cost(
            flops=2 * self.gates * self.length * self.batch * self.hidden * (self.inputs + self.hidden),
            bytes=(elements + weights) * dtype.itemsize,
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
    def step(self, ops: Any, projected: Any, weight_hh: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """The next state, in the operations of the reference or of JAX.

        `projected`: the input times its weights, plus the bias.
        """

    def forward(self, ops: Any, arrays: Any) -> Any:
        x, weights, outputs = arrays["x"], dict(arrays), []
        state = (ops.np.zeros((len(x), self.hidden)),) * self.states
        for t in range(self.length):
            weights = ops.reused(weights)
            projected = ops.linear(x[:, t], weights["weight_ih"], weights["bias"])
            state = self.step(ops, projected, weights["weight_hh"], state)
            outputs.append(state[0])
        return ops.np.stack(outputs, axis=1)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """lax.scan over the steps; all steps' products with the input at once, before it."""
        import jax
        import jax.numpy as jnp

        ops = jax_operations()

        def layer(x: Any, weight_ih: Any, weight_hh: Any, bias: Any) -> Any:
            def one(state: Any, projected: Any) -> Any:
                state = self.step(ops, projected, weight_hh, state)
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
        """Elements of the sampled sequences."""
        return reference_of_samples(self, arrays, index, ["x"])

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A layer of torch.nn that holds the weights; its second bias is 0."""
        import torch

        with torch.device("meta"):
            layer = getattr(torch.nn, self.torch_layer)(self.inputs, self.hidden, batch_first=True)
        state = {theirs: context.put(arrays[ours]) for ours, theirs in TORCH_NAMES.items()}
        state["bias_hh_l0"] = torch.zeros_like(state["bias_ih_l0"])
        layer.load_state_dict(state, assign=True)
        layer = layer.to(context.device).train(self.differentiated).requires_grad_(self.differentiated)
        layer.flatten_parameters()
        weights = tuple(getattr(layer, name) for name in TORCH_NAMES.values())
        return Program(lambda x: layer(x)[0], (context.put(arrays["x"]),), captured=weights)

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A layer of keras.layers with gates in PyTorch's order."""
        layer = self.keras(context, [arrays["weight_ih"].T, arrays["weight_hh"].T, arrays["bias"]])
        weights = tuple(variable.value for variable in layer.trainable_variables)
        axes = {"weight_ih": (1, 0), "weight_hh": (1, 0)}
        return Program(layer, (context.put(arrays["x"]),), captured=weights, input_axes=axes)

    def keras(self, context: DeviceContext, weights: list[Any]) -> Any:
        """A Keras layer that holds the weights and returns the output of every step."""
        import keras
        import tensorflow as tf

        kind = getattr(keras.layers, self.keras_layer)
        initial = {"kernel_initializer": "zeros", "recurrent_initializer": "zeros"}  # overwritten below
        with tf.device(context.device):
            layer = kind(self.hidden, return_sequences=True, dtype=context.dtype.name, **initial)
            layer.build((self.batch, self.length, self.inputs))
            for variable, array in zip(layer.trainable_variables, weights, strict=True):
                variable.assign(context.put(array))
        return layer


def jax_operations() -> SimpleNamespace:
    """The operations of `Recurrent.step` in JAX."""
    import jax
    import jax.numpy as jnp

    return SimpleNamespace(
        np=jnp, add=operator.add, multiply=operator.mul, linear=lambda x, weight: x @ weight.T,
        sigmoid=jax.nn.sigmoid, tanh=jnp.tanh,
    )  # fmt: skip


@dataclass(frozen=True)
class Lstm(Recurrent):
    """Hochreiter & Schmidhuber 1997 with forget gates (Gers et al. 2000), one bias; batch first."""

    summary = "an LSTM layer, all steps of a sequence"
    torch_layer = keras_layer = "LSTM"
    gates = 4  # input, forget, cell, output: the order of PyTorch and Keras
    states = 2  # output, cell

    def step(self, ops: Any, projected: Any, weight_hh: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        h, c = state
        i, f, g, o = ops.np.split(ops.add(projected, ops.linear(h, weight_hh)), self.gates, axis=1)
        kept = ops.multiply(ops.sigmoid(f), c)
        c = ops.add(kept, ops.multiply(ops.sigmoid(i), ops.tanh(g)))
        return ops.multiply(ops.sigmoid(o), ops.tanh(c)), c


@dataclass(frozen=True)
class LstmBackward(Backward, Lstm):
    summary = "gradients of an LSTM layer"


@dataclass(frozen=True)
class Gru(Recurrent):
    """Cho et al. 2014, reset after the recurrent product as in cuDNN, one bias; batch first."""

    summary = "a GRU layer, all steps of a sequence"
    torch_layer = keras_layer = "GRU"
    gates = 3  # reset, update, new: the order of PyTorch; Keras has update, reset, new

    def step(self, ops: Any, projected: Any, weight_hh: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        (h,) = state
        r, z, n = ops.np.split(projected, self.gates, axis=1)
        hr, hz, hn = ops.np.split(ops.linear(h, weight_hh), self.gates, axis=1)
        z = ops.sigmoid(ops.add(z, hz))
        n = ops.tanh(ops.add(n, ops.multiply(ops.sigmoid(ops.add(r, hr)), hn)))
        return (ops.add(ops.multiply(ops.add(1, -z), n), ops.multiply(z, h)),)

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Keras' GRU, with its gates in another order and a second bias, which is 0."""
        import numpy as np

        theirs = (
            np.arange(self.gates * self.hidden).reshape(self.gates, -1)[[1, 0, 2]].reshape(-1)
        )  # its own inverse
        bias = np.stack([arrays["bias"][theirs], np.zeros_like(arrays["bias"])])
        weights = [arrays["weight_ih"][theirs].T, arrays["weight_hh"][theirs].T, bias]
        layer = self.keras(context, weights)
        variables = tuple(variable.value for variable in layer.trainable_variables)

        def transposed(index: Indices) -> Indices:
            return np.stack([index[:, 1], theirs[index[:, 0]]], axis=1)

        def first_of_two(index: Indices) -> Indices:
            return np.stack([np.zeros_like(index[:, 0]), theirs[index[:, 0]]], axis=1)

        places = {"weight_ih": transposed, "weight_hh": transposed, "bias": first_of_two}
        return Program(layer, (context.put(arrays["x"]),), captured=variables, input_index=places)


@dataclass(frozen=True)
class GruBackward(Backward, Gru):
    summary = "gradients of a GRU layer"


@dataclass(frozen=True)
class Rnn(Recurrent):
    """h = tanh(Wx + b + Uh) (Elman 1990, "Finding structure in time")."""

    summary = "a plain (tanh) recurrent layer, all steps of a sequence"
    torch_layer = "RNN"
    keras_layer = "SimpleRNN"  # without cuDNN
    gates = 1

    def tiny(self) -> Self:
        """The bias has elements enough that its gradient's error does not depend on one of them."""
        return replace(super().tiny(), hidden=19)

    def step(self, ops: Any, projected: Any, weight_hh: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        (h,) = state
        return (ops.tanh(ops.add(projected, ops.linear(h, weight_hh))),)


@dataclass(frozen=True)
class RnnBackward(Backward, Rnn):
    summary = "gradients of a plain recurrent layer"
