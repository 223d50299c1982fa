"""One plain recurrent layer over whole sequences, from a state of zeros: h = tanh(Wx + b + Uh)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from benchbench.workloads._recurrent import Recurrent, keras_layer, torch_program
from benchbench.workloads.backward import Backward
from benchbench.workloads.base import Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext


@dataclass(frozen=True)
class Rnn(Recurrent):
    """Elman 1990, "Finding structure in time"; one bias; batch first."""

    summary = "a plain (tanh) recurrent layer, all steps of a sequence"
    gates = 1

    def tiny(self) -> Self:
        """The bias has elements enough that its gradient's error does not depend on one of them."""
        return replace(super().tiny(), hidden=19)

    def forward(self, ops: Any, arrays: Any) -> Any:
        x, weights, outputs = arrays["x"], dict(arrays), []
        h = ops.np.zeros((len(x), self.hidden))
        for t in range(self.length):
            weights = ops.reused(weights)
            given = ops.linear(x[:, t], weights["weight_ih"], weights["bias"])
            h = ops.tanh(ops.add(given, ops.linear(h, weights["weight_hh"])))
            outputs.append(h)
        return ops.np.stack(outputs, axis=1)

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """torch.nn.RNN, which is cuDNN's on a GPU."""
        import torch

        return torch_program(self, torch.nn.RNN, context, arrays)

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Keras' SimpleRNN, which cuDNN has no part in."""
        import keras

        weights = [arrays["weight_ih"].T, arrays["weight_hh"].T, arrays["bias"]]
        layer = keras_layer(self, keras.layers.SimpleRNN, context, weights)
        held = tuple(variable.value for variable in layer.trainable_variables)
        axes = {"weight_ih": (1, 0), "weight_hh": (1, 0)}
        return Program(layer, (context.put(arrays["x"]),), held=held, input_axes=axes)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """lax.scan over the steps; all steps' products with the input at once, before it."""
        import jax
        import jax.numpy as jnp

        def step(x: Any, weight_ih: Any, weight_hh: Any, bias: Any) -> Any:
            def one(h: Any, given: Any) -> Any:
                h = jnp.tanh(given + h @ weight_hh.T)
                return h, h

            zeros = jnp.zeros((self.batch, self.hidden), x.dtype)
            _, outputs = jax.lax.scan(one, zeros, (x @ weight_ih.T + bias).swapaxes(0, 1))
            return outputs.swapaxes(0, 1)

        names = "x", "weight_ih", "weight_hh", "bias"
        return Program(step, tuple(context.put(arrays[name]) for name in names))


@dataclass(frozen=True)
class RnnBackward(Backward, Rnn):
    """Gradients of the input and of the weights."""

    summary = "gradients of a plain recurrent layer"
