"""One LSTM layer over whole sequences, from a state of zeros."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import TYPE_CHECKING, Any, Self

from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads.backward import Backward
from benchbench.workloads.base import Operation, Program, reference_of_samples

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from benchbench.workloads.base import Arrays, DeviceContext, Draw

GATES = 4  # input, forget, cell, output: the order of PyTorch and of Keras


@dataclass(frozen=True)
class Lstm(Operation):
    """Hochreiter & Schmidhuber 1997 with forget gates (Gers et al. 2000), one bias; batch first."""

    length: int = 100
    batch: int = 64
    inputs: int = 512
    hidden: int = 256

    summary = "an LSTM layer, all steps of a sequence"
    multiplications_saved = 1.0
    draws_tolerated = 4.0

    def cost(self, dtype: Dtype) -> Cost:
        """8·T·N·H·(I + H) FLOPs; input, weights and result move once; an item is a sequence."""
        moved = self.length * self.batch * (self.inputs + self.hidden)
        weights = GATES * self.hidden * (self.inputs + self.hidden + 1)
        return Cost(
            flops=2 * GATES * self.length * self.batch * self.hidden * (self.inputs + self.hidden),
            bytes=(moved + weights) * dtype.itemsize,
            items=self.batch,
            item="sequence",
        )

    @property
    def output_shape(self) -> tuple[int, int, int]:
        """Batch, steps, hidden units."""
        return self.batch, self.length, self.hidden

    def tiny(self) -> Self:
        """Odd sizes, none equal."""
        return replace(self, length=7, batch=3, inputs=11, hidden=5)

    def rounding_size(self) -> Self:
        """One sequence, of steps enough: each forgets about half of what was before."""
        usual = {"length": 32, "batch": 1, "inputs": 512, "hidden": 256}
        return replace(self, **{name: min(getattr(self, name), size) for name, size in usual.items()})

    def arrays(self, draw: Draw) -> dict[str, NDArray[np.generic]]:
        """x, and the weights as in PyTorch, N(0, 1/3H): the variance that PyTorch draws them with."""
        rows, scale = GATES * self.hidden, 1 / sqrt(3 * self.hidden)
        return {
            "x": draw.normal("x", self.batch, self.length, self.inputs),
            "weight_ih": draw.normal("weight_ih", rows, self.inputs, scale=scale),
            "weight_hh": draw.normal("weight_hh", rows, self.hidden, scale=scale),
            "bias": draw.normal("bias", rows, scale=scale),
        }

    def is_input(self, name: str) -> bool:
        """The weights belong to the layer."""
        return name == "x"

    def sample(self, source: np.random.Generator, count: int) -> NDArray[np.int64]:
        """Of one sequence: they do not meet."""
        index = super().sample(source, count)
        index[:, 0] = index[0, 0]
        return index

    def reference(self, arrays: Arrays, index: NDArray[np.int64]) -> NDArray[np.float64]:
        """Of the sequences that are asked for."""
        return reference_of_samples(self, arrays, index, ["x"])

    def forward(self, ops: Any, arrays: Any) -> Any:
        """Step by step."""
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

        with torch.device("meta"):
            layer = torch.nn.LSTM(self.inputs, self.hidden, batch_first=True)
        weights = {name: context.put(arrays[name]) for name in ("weight_ih", "weight_hh", "bias")}
        names = {"weight_ih": "weight_ih_l0", "weight_hh": "weight_hh_l0", "bias": "bias_ih_l0"}
        state = {names[name]: weight for name, weight in weights.items()}
        layer.load_state_dict({**state, "bias_hh_l0": torch.zeros_like(weights["bias"])}, assign=True)
        layer = layer.to(context.device).train(self.differentiated).requires_grad_(self.differentiated)
        layer.flatten_parameters()
        held = tuple(getattr(layer, name) for name in names.values())
        return Program(lambda x: layer(x)[0], (context.put(arrays["x"]),), held=held)

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Keras' LSTM, which is cuDNN's on a GPU unless XLA compiles it."""
        import keras
        import tensorflow as tf

        with tf.device(context.device):
            given = {"kernel_initializer": "zeros", "recurrent_initializer": "zeros"}  # overwritten below
            layer = keras.layers.LSTM(self.hidden, return_sequences=True, dtype=context.dtype.name, **given)
            layer.build((self.batch, self.length, self.inputs))
            weights = [arrays["weight_ih"].T, arrays["weight_hh"].T, arrays["bias"]]
            for variable, array in zip(layer.trainable_variables, weights, strict=True):
                variable.assign(context.put(array))
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
    """Of the input and of the weights."""

    summary = "gradients of an LSTM layer"
