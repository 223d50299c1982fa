"""One LSTM layer over whole sequences, from a state of zeros."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchbench.workloads._recurrent import Recurrent, keras_layer, torch_program
from benchbench.workloads.backward import Backward
from benchbench.workloads.base import Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext

GATES = 4  # input, forget, cell, output: the order of PyTorch and of Keras


@dataclass(frozen=True)
class Lstm(Recurrent):
    """Hochreiter & Schmidhuber 1997 with forget gates (Gers et al. 2000), one bias; batch first."""

    summary = "an LSTM layer, all steps of a sequence"
    gates = GATES

    def forward(self, ops: Any, arrays: Any) -> Any:
        x, weights, outputs = arrays["x"], dict(arrays), []
        h = c = ops.np.zeros((len(x), self.hidden))
        for t in range(self.length):
            weights = ops.reused(weights)
            given = ops.linear(x[:, t], weights["weight_ih"], weights["bias"])
            gates = ops.add(given, ops.linear(h, weights["weight_hh"]))
            i, f, g, o = ops.np.split(gates, GATES, axis=1)
            kept = ops.multiply(ops.sigmoid(f), c)
            c = ops.add(kept, ops.multiply(ops.sigmoid(i), ops.tanh(g)))
            h = ops.multiply(ops.sigmoid(o), ops.tanh(c))
            outputs.append(h)
        return ops.np.stack(outputs, axis=1)

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """torch.nn.LSTM, which is cuDNN's on a GPU; PyTorch's second bias is 0."""
        import torch

        return torch_program(self, torch.nn.LSTM, context, arrays)

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Keras' LSTM, which is cuDNN's on a GPU unless XLA compiles it."""
        import keras

        weights = [arrays["weight_ih"].T, arrays["weight_hh"].T, arrays["bias"]]
        layer = keras_layer(self, keras.layers.LSTM, context, weights)
        held = tuple(variable.value for variable in layer.trainable_variables)
        axes = {"weight_ih": (1, 0), "weight_hh": (1, 0)}
        return Program(layer, (context.put(arrays["x"]),), held=held, input_axes=axes)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """lax.scan over the steps; all steps' products with the input at once, before it."""
        import jax
        import jax.numpy as jnp

        def step(x: Any, weight_ih: Any, weight_hh: Any, bias: Any) -> Any:
            def one(state: Any, gates: Any) -> Any:
                h, c = state
                i, f, g, o = jnp.split(gates + h @ weight_hh.T, GATES, axis=1)
                c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
                h = jax.nn.sigmoid(o) * jnp.tanh(c)
                return (h, c), h

            zeros = jnp.zeros((self.batch, self.hidden), x.dtype)
            _, outputs = jax.lax.scan(one, (zeros, zeros), (x @ weight_ih.T + bias).swapaxes(0, 1))
            return outputs.swapaxes(0, 1)

        names = "x", "weight_ih", "weight_hh", "bias"
        return Program(step, tuple(context.put(arrays[name]) for name in names))


@dataclass(frozen=True)
class LstmBackward(Backward, Lstm):
    """Gradients of the input and of the weights."""

    summary = "gradients of an LSTM layer"
