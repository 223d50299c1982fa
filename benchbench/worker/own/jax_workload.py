"""A user's JAX function as a workload, in a worker: its parameters and inputs, made once a run; its step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchbench.arrays import AnyArray
from benchbench.model.case import Dtype
from benchbench.worker.own import jax_function, jax_graph
from benchbench.worker.own.source import Loaded
from benchbench.worker.own.workload import INPUT, SPREAD, WEIGHT, OwnOperation
from benchbench.workloads.base import DeviceContext, Draw, Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays


@dataclass(frozen=True)
class JaxInference(OwnOperation):
    """The outputs of a user's JAX function."""

    def load(self) -> Loaded:
        return jax_function.load(self.spec)

    def graph_of(self) -> dict[str, Any]:
        return jax_graph.graph_of(self.spec, self.sizes)

    def made_inputs(self, number: int) -> dict[str, AnyArray]:
        return jax_function.made_inputs(self.spec, self.sizes, number)[0]

    def made_weights(self) -> dict[str, AnyArray]:
        """Those that are all one number are drawn around it: a bias of zeros can be forgotten unseen."""
        import numpy as np

        leaves = jax_function.built(self.spec, self.sizes).leaves
        made = {name: jax_function.as_array(each) for name, each in leaves.items()}
        for name in () if self.spec.as_they_are else jax_graph.constant_leaves(leaves):
            noise = Draw(Dtype.FLOAT32).normal(name, *made[name].shape, scale=SPREAD)
            made[name] = made[name] + np.asarray(noise).reshape(made[name].shape)
        return made

    def tensors(self, arrays: Arrays, put: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Weights and inputs by their own names, each as `put` has it."""
        return (
            {
                name.removeprefix(WEIGHT): put(each)
                for name, each in arrays.items()
                if name.startswith(WEIGHT)
            },
            {name.removeprefix(INPUT): put(each) for name, each in arrays.items() if self.is_input(name)},
        )

    def outputs(self) -> Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]:
        """The function, of its parameters and inputs by name; it gives its outputs by name."""
        function = jax_function.built(self.spec, self.sizes)
        arguments = jax_function.arguments_like(jax_function.made_inputs(self.spec, self.sizes, 0)[1])

        def computed(leaves: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
            own, named = arguments(inputs)
            return jax_function.outputs_of(function.call(leaves, *own, **named))

        return computed

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """The function as it is written, of its parameters: XLA would take what it holds for constants."""
        computed = self.outputs()
        held, inputs = self.tensors(arrays, context.put)
        names = list(inputs)

        def step(held: Any, *inputs: Any) -> Any:
            found = tuple(computed(held, dict(zip(names, inputs, strict=True))).values())
            return found if len(found) > 1 else found[0]

        def given(arrays: Arrays) -> tuple[Any, ...]:
            return held, *self.tensors(arrays, context.put)[1].values()

        return Program(step, given(arrays), inputs_of=given)
