"""One LSTM layer over whole sequences, from a state of zeros."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchbench.workloads._recurrent import Recurrent, keras_program, torch_program
from benchbench.workloads.backward import Backward

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext, Program

GATES = 4  # input, forget, cell, output: the order of PyTorch and of Keras


@dataclass(frozen=True)
class Lstm(Recurrent):
    """Hochreiter & Schmidhuber 1997 with forget gates (Gers et al. 2000), one bias; batch first."""

    summary = "an LSTM layer, all steps of a sequence"
    gates = GATES
    states = 2  # output, cell

    def step(self, ops: Any, given: Any, weight_hh: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        h, c = state
        i, f, g, o = ops.np.split(ops.add(given, ops.linear(h, weight_hh)), GATES, axis=1)
        kept = ops.multiply(ops.sigmoid(f), c)
        c = ops.add(kept, ops.multiply(ops.sigmoid(i), ops.tanh(g)))
        return ops.multiply(ops.sigmoid(o), ops.tanh(c)), c

    def jax_step(self, given: Any, weight_hh: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        import jax
        import jax.numpy as jnp

        h, c = state
        i, f, g, o = jnp.split(given + h @ weight_hh.T, GATES, axis=1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jax.nn.sigmoid(o) * jnp.tanh(c), c

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """torch.nn.LSTM, which is cuDNN's on a GPU; PyTorch's second bias is 0."""
        import torch

        return torch_program(self, torch.nn.LSTM, context, arrays)

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Keras' LSTM, which is cuDNN's on a GPU unless XLA compiles it."""
        import keras

        return keras_program(self, keras.layers.LSTM, context, arrays)


@dataclass(frozen=True)
class LstmBackward(Backward, Lstm):
    """Gradients of the input and of the weights."""

    summary = "gradients of an LSTM layer"
