"""Workload of a user's JAX function: its weights, inputs and program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchbench.arrays import AnyArray
from benchbench.model.case import Dtype
from benchbench.worker.user_models import jax_function, jax_graph
from benchbench.worker.user_models.source import LoadedModel
from benchbench.worker.user_models.workload import INPUT, NOISE_SCALE, WEIGHT, ModelOperation
from benchbench.workloads.base import DeviceContext, Draw, Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays


@dataclass(frozen=True)
class JaxInference(ModelOperation):
    """The outputs of a user's JAX function."""

    def load(self) -> LoadedModel:
        return jax_function.load(self.spec)

    def graph_of(self) -> dict[str, Any]:
        return jax_graph.graph_of(self.spec, self.sizes)

    def make_inputs(self, number: int) -> dict[str, AnyArray]:
        return jax_function.make_inputs(self.spec, self.sizes, number)[0]

    def make_weights(self) -> dict[str, AnyArray]:
        """Parameters of the function. Constant arrays get random noise; see `workload.make_weights`."""
        import numpy as np

        leaves = jax_function.build(self.spec, self.sizes).leaves
        weights = {name: jax_function.as_array(leaf) for name, leaf in leaves.items()}
        for name in () if self.spec.as_they_are else jax_graph.constant_leaves(leaves):
            noise = Draw(Dtype.FLOAT32).normal(name, *weights[name].shape, scale=NOISE_SCALE)
            weights[name] = weights[name] + np.asarray(noise).reshape(weights[name].shape)
        return weights

    def tensors(self, arrays: Arrays, put: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return (weights, inputs) by name, each array converted by `put`."""
        return (
            {
                name.removeprefix(WEIGHT): put(array)
                for name, array in arrays.items()
                if name.startswith(WEIGHT)
            },
            {name.removeprefix(INPUT): put(array) for name, array in arrays.items() if self.is_input(name)},
        )

    def outputs(self) -> Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]:
        """Return the function of weights and inputs by name; it returns its outputs by name."""
        function = jax_function.build(self.spec, self.sizes)
        arguments = jax_function.arguments_like(jax_function.make_inputs(self.spec, self.sizes, 0)[1])

        def compute(leaves: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
            args, kwargs = arguments(inputs)
            return jax_function.outputs_of(function.call(leaves, *args, **kwargs))

        return compute

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Program with the weights as arguments, since XLA treats closed-over arrays as constants."""
        compute = self.outputs()
        weights, inputs = self.tensors(arrays, context.put)
        names = list(inputs)

        def step(weights: Any, *inputs: Any) -> Any:
            outputs = tuple(compute(weights, dict(zip(names, inputs, strict=True))).values())
            return outputs if len(outputs) > 1 else outputs[0]

        def make_inputs(arrays: Arrays) -> tuple[Any, ...]:
            return weights, *self.tensors(arrays, context.put)[1].values()

        return Program(step, make_inputs(arrays), inputs_of=make_inputs)
