"""One GRU layer over whole sequences, from a state of zeros."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchbench.arrays import Indices
from benchbench.workloads._recurrent import Recurrent, keras_layer, torch_program
from benchbench.workloads.backward import Backward
from benchbench.workloads.base import Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext

GATES = 3  # reset, update, new: the order of PyTorch; Keras has update, reset, new


@dataclass(frozen=True)
class Gru(Recurrent):
    """Cho et al. 2014, reset after the recurrent product as in cuDNN, one bias; batch first."""

    summary = "a GRU layer, all steps of a sequence"
    gates = GATES

    def step(self, ops: Any, given: Any, weight_hh: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        (h,) = state
        r, z, n = ops.np.split(given, GATES, axis=1)
        hr, hz, hn = ops.np.split(ops.linear(h, weight_hh), GATES, axis=1)
        z = ops.sigmoid(ops.add(z, hz))
        n = ops.tanh(ops.add(n, ops.multiply(ops.sigmoid(ops.add(r, hr)), hn)))
        return (ops.add(ops.multiply(ops.add(1, -z), n), ops.multiply(z, h)),)

    def jax_step(self, given: Any, weight_hh: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        import jax
        import jax.numpy as jnp

        (h,) = state
        r, z, n = jnp.split(given, GATES, axis=1)
        hr, hz, hn = jnp.split(h @ weight_hh.T, GATES, axis=1)
        z = jax.nn.sigmoid(z + hz)
        n = jnp.tanh(n + jax.nn.sigmoid(r + hr) * hn)
        return ((1 - z) * n + z * h,)

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """torch.nn.GRU, which is cuDNN's on a GPU; PyTorch's second bias is 0."""
        import torch

        return torch_program(self, torch.nn.GRU, context, arrays)

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Keras' GRU, which is cuDNN's on a GPU unless XLA compiles it; its second bias is 0."""
        import keras
        import numpy as np

        theirs = np.arange(GATES * self.hidden).reshape(GATES, -1)[[1, 0, 2]].reshape(-1)  # its own inverse
        bias = np.stack([arrays["bias"][theirs], np.zeros_like(arrays["bias"])])
        weights = [arrays["weight_ih"][theirs].T, arrays["weight_hh"][theirs].T, bias]
        layer = keras_layer(self, keras.layers.GRU, context, weights)
        held = tuple(variable.value for variable in layer.trainable_variables)

        def transposed(index: Indices) -> Indices:
            return np.stack([index[:, 1], theirs[index[:, 0]]], axis=1)

        def first_of_two(index: Indices) -> Indices:
            return np.stack([np.zeros_like(index[:, 0]), theirs[index[:, 0]]], axis=1)

        places = {"weight_ih": transposed, "weight_hh": transposed, "bias": first_of_two}
        return Program(layer, (context.put(arrays["x"]),), held=held, input_index=places)


@dataclass(frozen=True)
class GruBackward(Backward, Gru):
    """Gradients of the input and of the weights."""

    summary = "gradients of a GRU layer"
