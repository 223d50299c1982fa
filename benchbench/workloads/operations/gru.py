"""One GRU layer over whole sequences, from a state of zeros."""

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

GATES = 3  # reset, update, new: the order of PyTorch; Keras has update, reset, new
WEIGHTS = {"weight_ih": "weight_ih_l0", "weight_hh": "weight_hh_l0", "bias": "bias_ih_l0"}  # in PyTorch


@dataclass(frozen=True)
class Gru(Operation):
    """Cho et al. 2014, reset after the recurrent product as in cuDNN, one bias; batch first."""

    length: int = 100
    batch: int = 64
    inputs: int = 512
    hidden: int = 256

    summary = "a GRU layer, all steps of a sequence"
    multiplications_saved = 1.0
    draws_tolerated = 4.0

    def cost(self, dtype: Dtype) -> Cost:
        """6·T·N·H·(I + H) FLOPs; input, weights and result move once; an item is a sequence."""
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
        h = ops.np.zeros((len(x), self.hidden))
        for t in range(self.length):
            weights = ops.reused(weights)
            given = ops.linear(x[:, t], weights["weight_ih"], weights["bias"])
            r, z, n = ops.np.split(given, GATES, axis=1)
            hr, hz, hn = ops.np.split(ops.linear(h, weights["weight_hh"]), GATES, axis=1)
            z = ops.sigmoid(ops.add(z, hz))
            n = ops.tanh(ops.add(n, ops.multiply(ops.sigmoid(ops.add(r, hr)), hn)))
            h = ops.add(ops.multiply(ops.add(1, -z), n), ops.multiply(z, h))
            outputs.append(h)
        return ops.np.stack(outputs, axis=1)

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """torch.nn.GRU, which is cuDNN's on a GPU; PyTorch's second bias is 0."""
        import torch

        with torch.device("meta"):
            layer = torch.nn.GRU(self.inputs, self.hidden, batch_first=True)
        state = {theirs: context.put(arrays[ours]) for ours, theirs in WEIGHTS.items()}
        state["bias_hh_l0"] = torch.zeros_like(state["bias_ih_l0"])
        layer.load_state_dict(state, assign=True)
        layer = layer.to(context.device).train(self.differentiated).requires_grad_(self.differentiated)
        layer.flatten_parameters()
        held = tuple(getattr(layer, name) for name in WEIGHTS.values())
        return Program(lambda x: layer(x)[0], (context.put(arrays["x"]),), held=held)

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Keras' GRU, which is cuDNN's on a GPU unless XLA compiles it; its second bias is 0."""
        import keras
        import numpy as np
        import tensorflow as tf

        theirs = np.arange(GATES * self.hidden).reshape(GATES, -1)[[1, 0, 2]].reshape(-1)  # its own inverse
        with tf.device(context.device):
            given = {"kernel_initializer": "zeros", "recurrent_initializer": "zeros"}  # overwritten below
            layer = keras.layers.GRU(self.hidden, return_sequences=True, dtype=context.dtype.name, **given)
            layer.build((self.batch, self.length, self.inputs))
            bias = np.stack([arrays["bias"][theirs], np.zeros_like(arrays["bias"])])
            weights = [arrays["weight_ih"][theirs].T, arrays["weight_hh"][theirs].T, bias]
            for variable, array in zip(layer.trainable_variables, weights, strict=True):
                variable.assign(context.put(array))
        held = tuple(variable.value for variable in layer.trainable_variables)

        def transposed(index: NDArray[np.int64]) -> NDArray[np.int64]:
            return np.stack([index[:, 1], theirs[index[:, 0]]], axis=1)

        def first_of_two(index: NDArray[np.int64]) -> NDArray[np.int64]:
            return np.stack([np.zeros_like(index[:, 0]), theirs[index[:, 0]]], axis=1)

        places = {"weight_ih": transposed, "weight_hh": transposed, "bias": first_of_two}
        return Program(layer, (context.put(arrays["x"]),), held=held, input_index=places)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """lax.scan over the steps; all steps' products with the input at once, before it."""
        import jax
        import jax.numpy as jnp

        def step(x: Any, weight_ih: Any, weight_hh: Any, bias: Any) -> Any:
            def one(h: Any, given: Any) -> Any:
                r, z, n = jnp.split(given, GATES, axis=1)
                hr, hz, hn = jnp.split(h @ weight_hh.T, GATES, axis=1)
                z = jax.nn.sigmoid(z + hz)
                n = jnp.tanh(n + jax.nn.sigmoid(r + hr) * hn)
                h = (1 - z) * n + z * h
                return h, h

            zeros = jnp.zeros((self.batch, self.hidden), x.dtype)
            _, outputs = jax.lax.scan(one, zeros, (x @ weight_ih.T + bias).swapaxes(0, 1))
            return outputs.swapaxes(0, 1)

        names = "x", "weight_ih", "weight_hh", "bias"
        return Program(step, tuple(context.put(arrays[name]) for name in names))


@dataclass(frozen=True)
class GruBackward(Backward, Gru):
    """Of the input and of the weights."""

    summary = "gradients of a GRU layer"
