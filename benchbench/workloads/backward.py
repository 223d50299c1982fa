"""Gradients of an operation's inputs, by each framework's automatic differentiation.

    @dataclass(frozen=True)
    class AttentionBackward(Backward, Attention):
        summary = "gradients of attention"

The operation must define `forward` and a builder for each of torch, TensorFlow and JAX.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import compress
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from benchbench.arrays import Array, Floats, Indices
from benchbench.model.case import Dtype, Phase
from benchbench.model.measurement import Cost
from benchbench.workloads.base import DeviceContext, Draw, Operation, Program, sampled
from benchbench.workloads.program import torch_layout

if TYPE_CHECKING:
    import numpy as np

    from benchbench.workloads.base import Arrays

UPSTREAM = "upstream"  # the gradient of the output, N(0, 1)


class Backward(Operation):
    """Operation that returns the gradient of every input, including the forward pass."""

    phase = Phase.BACKWARD
    differentiated = True
    needs_forward: ClassVar[bool] = True  # False: no gradient depends on the output
    gives_output: ClassVar[bool] = False  # True: a step returns the output before the gradients
    constants: ClassVar[frozenset[str]] = frozenset()  # inputs of floating type without a gradient

    def cost(self, dtype: Dtype) -> Cost:
        """Twice the operation's cost, or three times if a gradient depends on the output."""
        forward = super().cost(dtype)  # type: ignore[safe-super]
        passes = 3 if self.needs_forward else 2
        return replace(forward, flops=passes * forward.flops, bytes=passes * forward.bytes)

    def arrays(self, draw: Draw) -> dict[str, Array]:
        """The operation's arrays, and the gradient of its output."""
        forward = super().arrays(draw)  # type: ignore[safe-super]
        return {**forward, UPSTREAM: draw.normal(UPSTREAM, *self.output_shape)}

    def is_input(self, name: str) -> bool:
        """The gradient of the output is also an input."""
        return name == UPSTREAM or super().is_input(name)

    @cached_property  # draws the arrays
    def output_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the gradients by the names of their inputs."""
        arrays = self.arrays(Draw(Dtype.FLOAT32))
        return {name: arrays[name].shape for name in self.gradient_names(arrays)}

    def gradient_names(self, arrays: Arrays) -> list[str]:
        """Names of the inputs with a gradient: of floating type, and not in `constants`."""
        excluded = {UPSTREAM, *self.constants}
        return [name for name, array in arrays.items() if array.dtype.kind == "f" and name not in excluded]

    @property
    def reduction(self) -> int:
        """Sums of the forward pass, plus those of a gradient's element; a vector meets each output once."""
        forward, outputs = super().reduction, prod(self.output_shape)
        gradient_sums = [
            outputs * (forward if len(shape) > 1 else 1) // prod(shape)
            for shape in self.output_shapes.values()
        ]
        return forward + max(gradient_sums)

    @property
    def roundings(self) -> int:
        return 2 * super().roundings

    def samples(self, source: np.random.Generator, count: int) -> dict[str, Indices]:
        return {name: sampled(source, shape, count) for name, shape in self.output_shapes.items()}

    def references(
        self, arrays: Arrays, indices: Mapping[str, Indices], ops: Any = None
    ) -> dict[str, Floats]:
        """Gradients by automatic differentiation of `forward`, all elements at once."""
        import numpy as np
        from autograd import grad

        from benchbench.workloads._reference.ops import Ops

        wide = {name: arrays[name].astype(float) for name in self.gradient_names(arrays)}
        upstream = arrays[UPSTREAM].astype(float)

        def weighted_sum(differentiated: Any) -> Any:
            return (self.forward(ops or Ops(), {**arrays, **differentiated}) * upstream).sum()

        gradients = grad(weighted_sum)(wide)
        return {name: np.asarray(gradients[name][tuple(index.T)]) for name, index in indices.items()}

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Program that calls torch.autograd.grad."""
        import torch

        forward: Program = super().build_torch(context, _without_upstream(arrays))  # type: ignore[misc]
        varied = self._varied(arrays, forward)

        def step(upstream: Any, *inputs: Any) -> Any:
            leaves = [tensor.detach().requires_grad_() for tensor in compress(inputs, varied)]
            output = forward.step(*_merged(leaves, inputs, varied))
            gradients = torch.autograd.grad(output, (*leaves, *forward.captured), upstream)
            return self._packed(output.detach(), gradients)

        program = _backward(step, context, arrays, forward)
        if not forward.layout:
            return program
        upstream, *forward_inputs = program.inputs
        # The layout in which the next layer would return it.
        upstream = upstream.contiguous(memory_format=torch_layout(context, upstream.ndim))
        return replace(program, inputs=(upstream, *forward_inputs))

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Program with a gradient tape. Sparse gradients of tables are made dense, as elsewhere."""
        import tensorflow as tf

        forward: Program = super().build_tensorflow(context, _without_upstream(arrays))  # type: ignore[misc]
        varied = self._varied(arrays, forward)

        def step(upstream: Any, *inputs: Any) -> Any:
            sources = [*compress(inputs, varied), *forward.captured]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(sources)
                output = forward.step(*inputs)
            gradients = tape.gradient(output, sources, tf.cast(upstream, output.dtype))
            return self._packed(output, [tf.convert_to_tensor(gradient) for gradient in gradients])

        return _backward(step, context, arrays, forward)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Program with jax.vjp. State, such as a random key, is passed through."""
        import jax

        forward: Program = super().build_jax(context, _without_upstream(arrays))  # type: ignore[misc]
        varied, states = self._varied(arrays, forward), len(forward.state)

        def step(*arguments: Any) -> Any:
            state, (upstream, *inputs) = arguments[:states], arguments[states:]

            def of_leaves(*leaves: Any) -> tuple[Any, Any]:
                result = forward.step(*state, *_merged(leaves, inputs, varied))
                return (result[-1], result[:-1]) if states else (result, ())

            output, backward, after = jax.vjp(of_leaves, *compress(inputs, varied), has_aux=True)
            result = self._packed(output, backward(upstream.astype(output.dtype)))
            return (*after, result) if states else result

        return replace(_backward(step, context, arrays, forward), state=forward.state)

    def _packed(self, output: Any, gradients: Sequence[Any]) -> Any:
        """The result of a step: a tuple, or its only element."""
        results = (output, *gradients) if self.gives_output else tuple(gradients)
        return results if len(results) > 1 else results[0]

    def _varied(self, arrays: Arrays, forward: Program) -> list[bool]:
        """Whether each of the program's inputs, in the order of the arrays, gets a gradient."""
        names = self.gradient_names(arrays)
        return [name in names for name in list(arrays)[: len(forward.inputs)]]


def _merged(leaves: Sequence[Any], inputs: Sequence[Any], varied: Sequence[bool]) -> list[Any]:
    """The inputs, with the leaves in place of those that vary."""
    remaining = iter(leaves)
    return [next(remaining) if varies else value for value, varies in zip(inputs, varied, strict=True)]


def _without_upstream(arrays: Arrays) -> Arrays:
    return {name: array for name, array in arrays.items() if name != UPSTREAM}


def _backward(step: Any, context: DeviceContext, arrays: Arrays, forward: Program) -> Program:
    import numpy as np

    upstream = arrays[UPSTREAM]
    if forward.axes and upstream.ndim:
        upstream = np.ascontiguousarray(upstream.transpose(forward.axes))
    inputs = (context.put(upstream), *forward.inputs)
    return Program(
        step,
        inputs,
        input_axes=forward.input_axes,
        input_index=forward.input_index,
        layout=forward.layout,
        notes=forward.notes,
    )
