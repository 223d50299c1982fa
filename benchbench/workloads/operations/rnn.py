"""One plain recurrent layer over whole sequences, from a state of zeros: h = tanh(Wx + b + Uh)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from benchbench.workloads._recurrent import Recurrent, keras_program, torch_program
from benchbench.workloads.backward import Backward

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext, Program


@dataclass(frozen=True)
class Rnn(Recurrent):
    """Elman 1990, "Finding structure in time"; one bias; batch first."""

    summary = "a plain (tanh) recurrent layer, all steps of a sequence"
    gates = 1

    def tiny(self) -> Self:
        """The bias has elements enough that its gradient's error does not depend on one of them."""
        return replace(super().tiny(), hidden=19)

    def step(self, ops: Any, given: Any, weight_hh: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        (h,) = state
        return (ops.tanh(ops.add(given, ops.linear(h, weight_hh))),)

    def jax_step(self, given: Any, weight_hh: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        import jax.numpy as jnp

        (h,) = state
        return (jnp.tanh(given + h @ weight_hh.T),)

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """torch.nn.RNN, which is cuDNN's on a GPU."""
        import torch

        return torch_program(self, torch.nn.RNN, context, arrays)

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Keras' SimpleRNN, which cuDNN has no part in."""
        import keras

        return keras_program(self, keras.layers.SimpleRNN, context, arrays)


@dataclass(frozen=True)
class RnnBackward(Backward, Rnn):
    """Gradients of the input and of the weights."""

    summary = "gradients of a plain recurrent layer"
