"""A user's model as a workload, in a worker: weights and inputs, made once a run; a torch module's step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchbench.arrays import AnyArray, Array, Floats, Indices
from benchbench.backends.base import Session
from benchbench.errors import Unsupported
from benchbench.model.case import Dtype, Scalar
from benchbench.model.measurement import Cost, ModelFacts
from benchbench.model.own import KINDS, ModelSpec
from benchbench.worker.own import given_inputs, torch_graph, torch_module, torch_program
from benchbench.worker.own.source import BATCH, Loaded
from benchbench.worker.random_cache import cached_arrays, cached_result
from benchbench.workloads.base import DeviceContext, Draw, Operation, Program, Workload
from benchbench.workloads.program import without_gradients
from benchbench.workloads.steps import DRAWS_TOLERATED

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays

INPUT, WEIGHT = "input:", "weight:"  # what the names of its arrays begin with
SMALL_BATCH = 2  # where rounding is drawn, and where it is verified in float32
CALIBRATED_BATCH = 8  # of what batch norms take their statistics of
SPREAD = 0.1  # of what is added to parameters that are all one number: less, and deep networks hide many
IMAGE_AXES = 4  # of a batch of them, NCHW


@dataclass(frozen=True)
class OwnWorkload(Workload):
    """What the steps of a user's model share: its sizes, its weights, its inputs, the facts of its graph."""

    spec: ModelSpec
    sizes: Mapping[str, Scalar]

    summary: ClassVar[str] = "a model of yours"
    draws_tolerated = DRAWS_TOLERATED

    @property
    def params(self) -> dict[str, Scalar]:
        return dict(self.sizes)

    @abstractmethod
    def load(self) -> Loaded:
        """What the spec names: see `source.Loaded`."""

    @abstractmethod
    def graph_of(self) -> dict[str, Any]:
        """What it computes, without its numbers: see `torch_graph.graph_of`."""

    @abstractmethod
    def made_inputs(self, number: int) -> dict[str, AnyArray]:
        """Its inputs by name, those of a seed."""

    @abstractmethod
    def made_weights(self) -> dict[str, AnyArray]:
        """The tensors of a new model by name, ready to be verified."""

    @cached_property
    def graph(self) -> dict[str, Any]:
        """The facts of `facts`, kept."""
        return cached_result(f"graph of {self!r}", self.facts)

    def facts(self) -> dict[str, Any]:
        """The facts of its graph, whose digest also tells given inputs, and weights as they are."""
        graph = self.graph_of()
        own = [graph["digest"]]
        own += [f"inputs-{given_inputs.digest(self.spec)}"] if self.spec.input else []
        own += ["as-they-are"] if self.spec.as_they_are else []
        return {**graph, "digest": "+".join(own), "data": "+".join(own[1:])}

    @property
    def work_version(self) -> str:
        """The version of the work, by what it computes: a comment changes nothing, a layer does."""
        return f"{KINDS[self.spec.kind].version}:{self.graph['digest']}"

    @property
    def model_facts(self) -> ModelFacts:
        graph = self.graph
        return ModelFacts(
            inputs=tuple(graph["takes"]),
            outputs=tuple(graph["gives"]),
            parameters=graph["parameters"],
            data=graph["data"],
        )

    def cost(self, dtype: Dtype) -> Cost:
        """FLOPs as they are counted; bytes of all tensors once, a lower bound."""
        size, graph = self.sizes.get(BATCH, 1), self.graph
        items = size if isinstance(size, int) and size > 0 else 1
        moved = graph["floats"] * dtype.storage.itemsize + graph["other_bytes"]
        return Cost(
            flops=graph["flops"], bytes=moved, items=items, item="sample" if BATCH in self.sizes else "call"
        )

    @property
    def multiplications_saved(self) -> float:
        """An upper bound: a convolution of any filter saves no more than its largest filter has taps."""
        return float(self.graph["taps"])

    def refuses(self, dtype: Dtype) -> str:
        """Only what rounding can be drawn for can be verified."""
        if dtype is Dtype.INT8:
            return "accelbench quantises no model of yours"
        return super().refuses(dtype)

    def is_input(self, name: str) -> bool:
        return name.startswith(INPUT)

    def arrays(self, draw: Draw) -> dict[str, Array]:
        return {**self.input_arrays(draw), **self.weights(draw)}

    def input_arrays(self, draw: Draw) -> dict[str, Array]:
        """What its `inputs` gives, under one seed or another. Raises ModelMistake."""
        given_inputs.check_size(self.spec, self.sizes)
        number = draw.number(INPUT)
        arrays = cached_arrays(f"inputs {number} of {self!r}", lambda: self.made_inputs(number))
        return {f"{INPUT}{name}": as_stored(array, draw) for name, array in arrays.items()}

    def weights(self, draw: Draw) -> dict[str, Array]:
        """Parameters and buffers, made once a run: another version or framework would draw others."""
        at = self.at_calibration()
        arrays = cached_arrays(f"weights of {at!r}", at.made_weights)
        return {f"{WEIGHT}{name}": as_stored(array, draw) for name, array in arrays.items()}

    def at_calibration(self) -> Self:
        """At the size at which its weights are made, the same for all sizes of its inputs."""
        loaded = self.load()
        sizes = {name: self.sizes.get(name, value) for name, value in loaded.sizes_of_model.items()}
        of_inputs = {**loaded.sizes_of_inputs, **sizes}
        if type(of_inputs.get(BATCH)) is int:
            usual = 0 if self.spec.input else int(of_inputs[BATCH])
            of_inputs[BATCH] = max(CALIBRATED_BATCH, usual)
        return replace(self, sizes=of_inputs)

    def tiny(self) -> Self:
        batch = self.sizes.get(BATCH)
        if type(batch) is not int or batch <= SMALL_BATCH:
            return self
        return replace(self, sizes={**self.sizes, BATCH: SMALL_BATCH})


@dataclass(frozen=True)
class OwnOperation(OwnWorkload, Operation):
    """The outputs of a user's model of any kind in evaluation mode, all of which are verified."""

    whole: ClassVar[bool] = True

    @property
    def output_shape(self) -> tuple[int, ...]:
        return next(iter(self.output_shapes.values()))

    @property
    def output_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(shape) for name, shape in self.graph["outputs"].items()}

    def is_integer(self, name: str) -> bool:
        """Whether an output has integers or truth values, which must be equal."""
        return name in self.graph["integers"]

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        """All of its outputs are verified: see `reference.py`."""
        raise NotImplementedError


@dataclass(frozen=True)
class TorchWorkload(OwnWorkload):
    """What the steps of a user's torch module share."""

    def load(self) -> Loaded:
        return torch_module.load(self.spec)

    def graph_of(self) -> dict[str, Any]:
        return torch_graph.graph_of(self.spec, self.sizes)

    def made_inputs(self, number: int) -> dict[str, AnyArray]:
        module = torch_module.built(self.spec, self.sizes)
        return torch_module.made_inputs(self.spec, self.sizes, module, number)[0]

    def made_weights(self) -> dict[str, AnyArray]:
        return made_weights(self)

    def at_calibration(self) -> OwnInference:
        return OwnInference(self.spec, super().at_calibration().sizes)

    def module(self, arrays: Arrays, device: Any, dtype: Any) -> Any:
        """The module with these weights."""
        module = torch_module.built(self.spec, self.sizes).to(device=device, dtype=dtype)
        if self.spec.is_program:
            torch_program.place_on(module, device)
        load_weights(module, arrays)
        return module

    def laid_out(
        self, context: DeviceContext, arrays: Arrays, module: Any
    ) -> tuple[Any, Callable[[Arrays], tuple[Any, ...]], str]:
        """The module, what makes tensors of its inputs, and how images lie in memory, "" without any.

        They lie channels last where the session asks for that. Raises Unsupported where nothing can.
        """
        import torch

        images = [name for name, array in arrays.items() if self.is_input(name) and array.ndim == IMAGE_AXES]
        rearranges = isinstance(context, Session) and context.rearranges
        if rearranges and not images:
            raise Unsupported("it takes no images, which alone can lie channels last")
        module = module.to(memory_format=torch.channels_last) if rearranges else module

        def put(name: str, array: Array) -> Any:
            tensor = context.put(array)
            as_image = rearranges and name in images
            return tensor.to(memory_format=torch.channels_last) if as_image else tensor

        def given(arrays: Arrays) -> tuple[Any, ...]:
            return tuple(put(name, array) for name, array in arrays.items() if self.is_input(name))

        return module, given, ("NHWC" if rearranges else "NCHW") if images else ""

    def arguments(self, module: Any) -> torch_module.Arguments:
        """What makes the module's arguments of its input tensors by name."""
        return torch_module.made_inputs(self.spec, self.sizes, module, 0)[1]


@dataclass(frozen=True)
class OwnInference(TorchWorkload, OwnOperation):
    """The outputs of a user's torch module."""

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """The module as the user wrote it, in evaluation mode."""
        plain = self.module(arrays, context.device, context.dtype)
        arguments, places = self.arguments(plain), list(self.graph["places"].values())
        names = [name.removeprefix(INPUT) for name in arrays if self.is_input(name)]
        module, given, layout = self.laid_out(context, arrays, plain)

        def step(*inputs: Any) -> Any:
            own, named = arguments(dict(zip(names, inputs, strict=True)))
            with without_gradients():
                output = module(*own, **named)
            found = tuple(torch_module.at(output, place) for place in places)
            return found if len(found) > 1 else found[0]

        return Program(step, given(arrays), inputs_of=given, layout=layout)


def load_weights(module: Any, arrays: Arrays) -> None:
    """Give a module's parameters and buffers these values. Raises Unsupported where it has others."""
    import torch

    tensors = torch_module.tensors_of(module)
    values = {name.removeprefix(WEIGHT): array for name, array in arrays.items() if name.startswith(WEIGHT)}
    if tensors.keys() != values.keys():
        raise Unsupported(
            f"its tensors differ from process to process: {sorted(tensors.keys() ^ values.keys())[:3]}"
        )
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(torch.from_numpy(values[name]))


def made_weights(workload: TorchWorkload) -> dict[str, AnyArray]:
    """The tensors of a new module, ready to be verified.

    Parameters that are all one number are drawn around it, since a bias of zeros can be forgotten unseen;
    batch norms take the statistics of one batch, since with those that they begin with, signals fade from
    layer to layer.
    """
    import numpy as np
    import torch

    from benchbench.workloads._reference.torch_rounding import Widening, computed_in

    module = torch_module.built(workload.spec, workload.sizes)
    if workload.spec.as_they_are:
        return _arrays_of(module)
    constants = torch_graph.constant_parameters(module)
    tensors = torch_module.tensors_of(module)
    with torch.no_grad():
        for name in constants:
            tensor = tensors[name]
            noise = Draw(Dtype.FLOAT32).normal(name, *tensor.shape, scale=SPREAD)
            tensor.add_(torch.from_numpy(np.asarray(noise)).to(tensor.dtype))
    norms = [each for each in module.modules() if isinstance(each, torch.nn.modules.batchnorm._BatchNorm)]
    if any(each.track_running_stats for each in norms):
        inputs, arguments = torch_module.made_inputs(workload.spec, workload.sizes, module, 0)
        wide = module.double()
        for each in norms:
            each.train()
            each.momentum = 1.0
        own, named = arguments({name: widened(array) for name, array in inputs.items()})
        with torch.no_grad():
            computed_in(Widening(), lambda: wide(*own, **named))
    return _arrays_of(module)


def _arrays_of(module: Any) -> dict[str, AnyArray]:
    return {name: torch_module.as_array(tensor) for name, tensor in torch_module.tensors_of(module).items()}


def widened(array: AnyArray) -> Any:
    """A tensor of it: of float64 where it has floats."""
    import torch

    tensor = torch.from_numpy(array)
    return tensor.double() if tensor.is_floating_point() else tensor


def as_stored(array: AnyArray, draw: Draw) -> Array:
    """Floats as the case's dtype has them, others as they are."""
    return draw.rounded(array) if array.dtype.kind == "f" else array
