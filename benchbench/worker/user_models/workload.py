"""User models as workloads: weights and inputs, created once per run, and the program of a torch module."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchbench.arrays import AnyArray, Array, Floats, Indices
from benchbench.backends.base import Session
from benchbench.errors import Unsupported
from benchbench.model.case import STREAMS, Dtype, Scalar
from benchbench.model.measurement import Cost, ModelFacts
from benchbench.model.user_model import DECODE, KINDS, PREFILL, ModelSpec, counted_items
from benchbench.worker.random_cache import cached_arrays, cached_result
from benchbench.worker.user_models import (
    input_file,
    torch_graph,
    torch_module,
    torch_program,
    transformers_model,
)
from benchbench.worker.user_models.source import BATCH, LoadedModel
from benchbench.workloads.base import DeviceContext, Draw, Operation, Program, Workload
from benchbench.workloads.program import without_gradients
from benchbench.workloads.steps import DRAWS_TOLERATED

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays

INPUT, WEIGHT = "input:", "weight:"  # prefixes of array names
SCORES = "scores of "  # prefix of the scores among which an output of indices selects
MEAN = "mean over samples of "  # prefix of an output's mean over the batch
SMALL_BATCH = 2  # samples for rounding draws, and for the verification in float32
MIN_CALIBRATION_BATCH = 8  # samples for the statistics of batch norms
# Standard deviation of the noise on constant parameters. In deep networks, smaller noise is often invisible.
NOISE_SCALE = 0.1
IMAGE_AXES = 4  # NCHW


# A benchmark calls a model thousands of times, so equal inputs must give equal outputs.
STATE = (
    "the model keeps state between calls: reset it in forward, or take the state as an input and return it"
)


@dataclass(frozen=True, slots=True)
class RepeatedCalls:
    """Outputs of a first and a later call with the same inputs, and names of overwritten inputs."""

    first: Mapping[str, AnyArray]
    again: Mapping[str, AnyArray]
    overwritten: Sequence[str] = ()


@dataclass(frozen=True)
class ModelWorkload(Workload):
    """Base of the steps of a user's model: its sizes, weights, inputs and graph facts."""

    spec: ModelSpec
    sizes: Mapping[str, Scalar]
    # Parts of the batch that are computed at the same time. Not in the name, since the results are the same.
    streams: int = field(default=1, kw_only=True, repr=False)

    summary: ClassVar[str] = "a user model"
    draws_tolerated = DRAWS_TOLERATED

    @property
    def params(self) -> dict[str, Scalar]:
        return {**self.sizes, **({STREAMS: self.streams} if self.streams != 1 else {})}

    @abstractmethod
    def load(self) -> LoadedModel:
        """Import the model and return it with its default sizes."""

    @abstractmethod
    def graph_of(self) -> dict[str, Any]:
        """Facts of the model's computation as JSON values; see `torch_graph.graph_of`."""

    @abstractmethod
    def make_inputs(self, number: int) -> dict[str, AnyArray]:
        """Inputs by name, drawn with the seed of this number."""

    @abstractmethod
    def make_weights(self) -> dict[str, AnyArray]:
        """Tensors of a new model by name, prepared for verification."""

    @cached_property
    def graph(self) -> dict[str, Any]:
        """The result of `facts`, cached in the run folder."""
        return cached_result(f"graph of {self!r}", self.facts)

    def facts(self) -> dict[str, Any]:
        """Facts of the graph.

        The digest includes that of the user's inputs, and whether weights are used as they are.
        """
        graph = self.graph_of()
        digests = [graph["digest"]]
        digests += [f"inputs-{input_file.digest(self.spec)}"] if self.spec.input else []
        digests += ["as-they-are"] if self.spec.as_they_are else []
        return {**graph, "digest": "+".join(digests), "data": "+".join(digests[1:])}

    @property
    def work_version(self) -> str:
        """Version of the work by what it computes: layers matter, comments do not."""
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
        """FLOPs counted by the framework, and the bytes of all tensors once, which is a lower bound."""
        graph = self.graph
        items, item = counted_items(self.spec.step, self.sizes)
        moved_bytes = graph["floats"] * dtype.storage.itemsize + graph["other_bytes"]
        return Cost(flops=graph["flops"], bytes=moved_bytes, items=items, item=item)

    @property
    def multiplications_saved(self) -> float:
        """Upper bound: fast convolutions save at most the taps of the largest filter."""
        return float(self.graph["taps"])

    def refuses(self, dtype: Dtype) -> str:
        """Reason why the model cannot run in the dtype, or "".

        Only dtypes with a model of rounding can be verified.
        """
        if dtype is Dtype.INT8:
            return "accelbench does not quantise user models"
        return super().refuses(dtype)

    def is_input(self, name: str) -> bool:
        return name.startswith(INPUT)

    def arrays(self, draw: Draw) -> dict[str, Array]:
        return {**self.input_arrays(draw), **self.weights(draw)}

    def input_arrays(self, draw: Draw) -> dict[str, Array]:
        """Return the model's inputs as the case's dtype stores them. Raises ModelMistake."""
        input_file.check_size(self.spec, self.sizes)
        number = draw.number(INPUT)
        arrays = cached_arrays(f"inputs {number} of {self!r}", lambda: self.make_inputs(number))
        return {f"{INPUT}{name}": as_stored(array, draw) for name, array in arrays.items()}

    def weights(self, draw: Draw) -> dict[str, Array]:
        """Parameters and buffers, created once per run: other versions or frameworks would draw others."""
        calibration = self.at_calibration_size()
        arrays = cached_arrays(f"weights of {calibration!r}", calibration.make_weights)
        return {f"{WEIGHT}{name}": as_stored(array, draw) for name, array in arrays.items()}

    def at_calibration_size(self) -> Self:
        """The workload at the size at which weights are made, the same for all input sizes."""
        loaded = self.load()
        sizes = {name: self.sizes.get(name, value) for name, value in loaded.model_sizes.items()}
        calibration_sizes = {**loaded.input_sizes, **sizes}
        if type(calibration_sizes.get(BATCH)) is int:
            default_batch = 0 if self.spec.input else int(calibration_sizes[BATCH])
            calibration_sizes[BATCH] = max(MIN_CALIBRATION_BATCH, default_batch)
        return replace(self, sizes=calibration_sizes)

    def tiny(self) -> Self:
        batch = self.sizes.get(BATCH)
        if type(batch) is not int or batch <= SMALL_BATCH:
            return self
        return replace(self, sizes={**self.sizes, BATCH: SMALL_BATCH})


@dataclass(frozen=True)
class ModelOperation(ModelWorkload, Operation):
    """The outputs of a user's model of any kind in evaluation mode. All elements are verified."""

    whole: ClassVar[bool] = True

    @property
    def output_shape(self) -> tuple[int, ...]:
        return next(iter(self.output_shapes.values()))

    @property
    def output_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(shape) for name, shape in self.graph["outputs"].items()}

    def is_integer(self, name: str) -> bool:
        """True if an output contains integers or booleans, which must match exactly."""
        return name in self.graph["integers"]

    def compared(self, measured: Mapping[str, Floats], expected: Mapping[str, Floats]) -> dict[str, Floats]:
        """Measured outputs, with scores in place of selected indices, and the means over the batch.

        An engine may select another index whose score differs by a rounding error.
        """
        outputs = dict(measured)
        for name in expected:
            if name.startswith(SCORES):
                outputs[name.removeprefix(SCORES)] = selected(
                    expected[name], measured[name.removeprefix(SCORES)]
                )
            elif name.startswith(MEAN):
                outputs[name] = measured[name.removeprefix(MEAN)].mean(axis=0)
        return outputs

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        """Not used: the reference is computed in `reference.py`."""
        raise NotImplementedError


def selected(scores: Floats, indices: Floats) -> Floats:
    """The scores at indices along the last axis, NaN for indices out of range."""
    import numpy as np

    rows, count = scores.shape[:-1], scores.shape[-1]
    flat_indices = indices.reshape(*rows, -1) if rows else indices.reshape(-1)
    in_range = (flat_indices >= 0) & (flat_indices < count)
    chosen = np.take_along_axis(scores, np.where(in_range, flat_indices, 0).astype(np.int64), axis=-1)
    return np.where(in_range, chosen, np.nan)


@dataclass(frozen=True)
class TorchWorkload(ModelWorkload):
    """Base of the steps of a user's torch module."""

    def load(self) -> LoadedModel:
        return torch_module.load(self.spec)

    def graph_of(self) -> dict[str, Any]:
        return torch_graph.graph_of(self.spec, self.sizes)

    def make_inputs(self, number: int) -> dict[str, AnyArray]:
        module = torch_module.build(self.spec, self.sizes)
        return torch_module.make_inputs(self.spec, self.sizes, module, number)[0]

    def make_weights(self) -> dict[str, AnyArray]:
        return make_weights(self)

    def at_calibration_size(self) -> ModelInference:
        if self.spec.step not in ("", PREFILL):  # both steps of a language model have the same weights
            return ModelInference(replace(self.spec, step=PREFILL), self.sizes).at_calibration_size()
        return ModelInference(self.spec, super().at_calibration_size().sizes)

    def module(self, arrays: Arrays, device: Any, dtype: Any) -> Any:
        """Build the module and load these weights."""
        module = torch_module.build(self.spec, self.sizes).to(device=device, dtype=dtype)
        if self.spec.is_program:
            torch_program.place_on(module, device)
        load_weights(module, arrays)
        return module

    def with_layout(
        self, context: DeviceContext, arrays: Arrays, module: Any
    ) -> tuple[Any, Callable[[Arrays], tuple[Any, ...]], str]:
        """Return (module, make_inputs, layout) for the memory layout of the session.

        `make_inputs` creates the input tensors from arrays. `layout` is "NHWC" or "NCHW", or "" for a model
        without images. Raises Unsupported if the session asks for channels last and there are no images.
        """
        import torch

        inputs = [name for name in arrays if self.is_input(name)] if self.graph["takes_images"] else []
        images = [name for name in inputs if arrays[name].ndim == IMAGE_AXES]
        channels_last = isinstance(context, Session) and context.rearranges
        if channels_last and not images:
            raise Unsupported("it takes no images, and only images have a channels-last layout")
        module = module.to(memory_format=torch.channels_last) if channels_last else module

        def put(name: str, array: Array) -> Any:
            tensor = context.put(array)
            is_rearranged = channels_last and name in images
            return tensor.to(memory_format=torch.channels_last) if is_rearranged else tensor

        def make_inputs(arrays: Arrays) -> tuple[Any, ...]:
            return tuple(put(name, array) for name, array in arrays.items() if self.is_input(name))

        return module, make_inputs, ("NHWC" if channels_last else "NCHW") if images else ""

    def arguments(self, module: Any) -> torch_module.Arguments:
        """Return a function that makes the module's arguments from its input tensors by name."""
        return torch_module.make_inputs(self.spec, self.sizes, module, 0)[1]


@dataclass(frozen=True)
class ModelInference(TorchWorkload, ModelOperation):
    """The outputs of a user's torch module."""

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """The module as the user wrote it, in evaluation mode."""
        unplaced_module = self.module(arrays, context.device, context.dtype)
        arguments, paths = self.arguments(unplaced_module), list(self.graph["places"].values())
        names = [name.removeprefix(INPUT) for name in arrays if self.is_input(name)]
        module, make_plain_inputs, layout = self.with_layout(context, arrays, unplaced_module)
        is_compiled = isinstance(context, Session) and bool(context.compiler)
        if isinstance(context, Session) and context.exports:
            transformers_model.use_exportable_experts(module)
        preallocates = self.spec.step == DECODE and is_compiled and transformers_model.preallocate(module)

        def make_inputs(arrays: Arrays) -> tuple[Any, ...]:
            tensors = make_plain_inputs(arrays)
            if not preallocates:
                return tensors
            return tuple(map(transformers_model.with_free_position, names, tensors))

        def step(*inputs: Any) -> Any:
            args, kwargs = arguments(dict(zip(names, inputs, strict=True)))
            with without_gradients():
                output = module(*args, **kwargs)
            outputs = tuple(torch_module.tensor_at(output, path) for path in paths)
            return outputs if len(outputs) > 1 else outputs[0]

        return Program(step, make_inputs(arrays), inputs_of=make_inputs, layout=layout)


def load_weights(module: Any, arrays: Arrays) -> None:
    """Copy values into a module's parameters and buffers. Raises Unsupported if the names differ."""
    import torch

    tensors = torch_module.tensors_of(module)
    values = {name.removeprefix(WEIGHT): array for name, array in arrays.items() if name.startswith(WEIGHT)}
    if tensors.keys() != values.keys():
        raise Unsupported(
            f"its tensors differ between processes: {sorted(tensors.keys() ^ values.keys())[:3]}"
        )
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(torch.from_numpy(values[name]))


def make_weights(workload: TorchWorkload) -> dict[str, AnyArray]:
    """Tensors of a new module, prepared for verification.

    Constant parameters get random noise, since a program that forgets a bias of zeros would pass
    verification. Batch norms get the statistics of one batch, since with their initial statistics signals
    fade from layer to layer.
    """
    import numpy as np
    import torch

    from benchbench.workloads._reference.torch_rounding import Widening, computed_in

    module = torch_module.build(workload.spec, workload.sizes)
    if workload.spec.as_they_are:
        return _arrays_of(module)
    constants = torch_graph.constant_parameters(module)
    tensors = torch_module.tensors_of(module)
    with torch.no_grad():
        for name in constants:
            tensor = tensors[name]
            noise = Draw(Dtype.FLOAT32).normal(name, *tensor.shape, scale=NOISE_SCALE)
            tensor.add_(torch.from_numpy(np.asarray(noise)).to(tensor.dtype))
    norms = [norm for norm in module.modules() if isinstance(norm, torch.nn.modules.batchnorm._BatchNorm)]
    has_norms = any(norm.track_running_stats for norm in norms)
    if workload.spec.is_program:
        has_norms = torch_program.normalise_by_batch(module)
    if has_norms:
        inputs, arguments = torch_module.make_inputs(workload.spec, workload.sizes, module, 0)
        wide = module.double()
        for norm in norms:
            norm.train()
            norm.momentum = 1.0
        args, kwargs = arguments({name: widened_tensor(array) for name, array in inputs.items()})
        with torch.no_grad():
            computed_in(Widening(), lambda: wide(*args, **kwargs))
    return _arrays_of(module)


def _arrays_of(module: Any) -> dict[str, AnyArray]:
    return {name: torch_module.as_array(tensor) for name, tensor in torch_module.tensors_of(module).items()}


def widened_tensor(array: AnyArray) -> Any:
    """Convert an array to a tensor, floats to float64."""
    import torch

    tensor = torch.from_numpy(array)
    return tensor.double() if tensor.is_floating_point() else tensor


def as_stored(array: AnyArray, draw: Draw) -> Array:
    """Round floats to the case's dtype; return other arrays unchanged."""
    return draw.rounded(array) if array.dtype.kind == "f" else array
