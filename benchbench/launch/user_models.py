"""The user's models with the facts that a plan needs.

A worker with their framework imports and describes them, since this process has none.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import file_digest, sha256
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any

import msgspec

from benchbench import paths
from benchbench.backends.base import Backend
from benchbench.errors import UnreadableInput, UsageError
from benchbench.format import quantity, visible
from benchbench.launch.functions import imported_packages, module_file
from benchbench.launch.transport import RunJob
from benchbench.launch.user_files import UserWorkloadSize
from benchbench.machine.environment import cache_folder
from benchbench.model.case import STREAMS, Dtype, Phase, Scalar, streams_obstacle
from benchbench.model.measurement import Cost
from benchbench.model.placement import Strategy
from benchbench.model.user_model import (
    DECODE,
    JAX,
    KERAS,
    KINDS,
    PREFILL,
    SOURCE,
    TOKENS_OF_STEP,
    TORCH,
    ModelSpec,
    counted_items,
    parse_spec,
    relative,
)
from benchbench.workloads.steps import DRAWS_TOLERATED

PACKAGES: Mapping[str, tuple[str, ...]] = MappingProxyType(  # kind of model → packages that its file imports
    {
        KERAS: ("keras", "keras_hub", "tensorflow"),
        TORCH: ("torch", "transformers"),
        JAX: ("jax", "flax", "equinox"),
    }
)
BATCH = "batch"  # name of the parameter that is the number of samples, if the model has one
TRAIN_SUFFIX = "_train"  # of the name of a model's training step
STEP_MEANINGS = MappingProxyType(
    {
        PREFILL: "a prompt, up to the first token; ",
        DECODE: "one token after those in the cache of keys and values; ",
    }
)


class _Graph(msgspec.Struct):
    """The cost and interface of a step at the model's default sizes; see `torch_graph.graph_of`."""

    flops: int
    parameters: int
    constants: int
    takes_images: bool
    dtype: str = ""  # dtype of the floats in the model's file; "" if the file has none
    weights_dtype: str = ""  # dtype of the weights of a new module, unless it is float32
    omits: str = ""  # operator at the end of an ONNX file that is left out


class _Description(msgspec.Struct):
    """A worker's description of a model, or the mistake in its file."""

    attribute: str = ""
    is_default: bool = False
    sizes: dict[str, Scalar] = {}
    model_sizes: list[str] = []
    input_sizes: list[str] = []
    graph: _Graph | None = None
    size: UserWorkloadSize | None = None
    import_s: float = 0.0
    can_be_preloaded: bool = False
    has_loss: bool = False
    generates: bool = False
    mistake: str = ""
    hint: str = ""
    line: int | None = None


class UserModel:
    """A user's model without sizes. It has the attributes of a class of workloads."""

    __name__: str
    draws_tolerated = DRAWS_TOLERATED
    refused_on_cpu = ""
    worlds = (1,)

    def __init__(self, name: str, spec: ModelSpec, description: _Description, run_job: RunJob) -> None:
        assert description.graph
        assert description.size
        self.name = self.__name__ = name
        self.spec = dataclasses.replace(spec, is_quiet=description.can_be_preloaded)
        self.version = description.size.work_version
        self.phase = Phase.TRAIN if spec.trains else Phase.FORWARD
        self.summary = _signatures(description, {})
        self._description, self._graph, self._run_job = description, description.graph, run_job
        self.kind = KINDS[spec.kind]
        self._description_at = lru_cache(maxsize=None)(self._describe_at)

    @property
    def dtype(self) -> Dtype:
        """Default dtype: the dtype of the file or of the module's weights, else float32."""
        name = self._graph.dtype or self._graph.weights_dtype
        return Dtype(name) if name in tuple(Dtype) else Dtype.FLOAT32

    def summary_lines(self, sizes: Mapping[str, Sequence[Scalar]]) -> list[str]:
        """Lines for the user about the model and its verification, with the FLOPs at the first `sizes`."""
        first_sizes = {name: values[0] for name, values in sizes.items()}
        params = {**self.fields(), **first_sizes}
        params.pop(STREAMS, None)
        description = self._description_at(tuple(params.items()))
        graph = description.graph if description else None
        compared = [f"{name}={values[0]}" for name, values in sizes.items() if len(values) > 1]
        at = f" at {' '.join(compared)}" if compared else ""
        if self.spec.trains:
            flops = f", {quantity(graph.flops, 'FLOP')} forward and backward{at}" if graph else ""
            return [f"{self.name}: a training step{flops}; verified in the same way"]
        meaning = STEP_MEANINGS.get(self.spec.step, "")
        line, about_constants = f"{self.name}: {meaning}{_signatures(self._description, sizes)}", ""
        if graph:
            flops = f"{quantity(graph.flops, 'FLOP')} a step{at} ({self.kind.flops_source})"
            line += f"; {graph.parameters / 1e6:.3g} M parameters, {flops}"
            constants = f"{graph.constants} constant tensors (such as zero biases)"
            about_constants = f"; {constants} get random values, so that dropping one shows"
            if self.spec.as_they_are:
                about_constants = (
                    f", with its weights as they are: an engine may drop {constants} without a visible error"
                )
            about_constants = about_constants if graph.constants else ""
        if self.spec.step == DECODE:
            return [f"{line}; verified in the same way"]
        inputs = f", on the inputs in {Path(self.spec.input).name}" if self.spec.input else ""
        lines = [line, f"each engine is verified against the model's own float64{inputs}{about_constants}"]
        if graph and graph.omits:
            lines.append(f"its {graph.omits} is left out: the probabilities are measured as a tensor")
        if self._description.has_loss and self.spec.kind != TORCH:
            noun = self.kind.noun
            lines.append(f"its loss is not used: accelbench trains torch modules, and this is a {noun}")
        return lines

    @property
    def training_hint(self) -> str:
        """Hint for a user who requests a training step of a model without one."""
        if self.spec.kind != TORCH:
            return f"accelbench trains torch modules, and this is a {self.kind.noun}."
        return "A Python file that makes the model and defines loss(output, target) has one."

    def modes(self, backend: type[Backend]) -> list[str]:
        """Default modes; modes for user models only (`channels_last`) just for models of images."""
        names = backend.model_modes or backend.modes[:1]
        return [mode for mode in names if mode in backend.modes or self._graph.takes_images]

    def lossy_modes(self, backend: type[Backend]) -> list[str]:
        """Lossy modes that compete by default if errors are allowed."""
        left_out = () if self.spec.step else backend.weight_only_modes
        return [mode for mode in backend.lossy_modes if mode not in left_out]

    def fields(self) -> dict[str, Scalar]:
        """Default of each parameter."""
        sizes = self._description.sizes
        return {**sizes, **({STREAMS: 1} if self._takes_streams else {})}

    @property
    def _takes_streams(self) -> bool:
        """True for inference of a model with a batch, on engines that have streams."""
        return (
            self.spec.kind == TORCH
            and not self.spec.trains
            and type(self._description.sizes.get(BATCH)) is int
        )

    def strategies(self, framework: str) -> tuple[Strategy, ...]:
        """(), since user models are not divided among devices."""
        return ()

    def frameworks(self) -> list[str]:
        """The frameworks that run a model of its kind."""
        return list(self.kind.frameworks)

    @property
    def unsupported(self) -> Mapping[str, str]:
        """Framework that cannot run it → reason."""
        others = {name for kind in KINDS.values() for name in kind.frameworks}
        reason = f"only engines that take a {self.kind.noun} can run it"
        return dict.fromkeys(others.difference(self.kind.frameworks), reason)

    def __call__(self, **params: Scalar) -> UserWorkloadSize:
        """The model at these sizes; without FLOPs and bytes if it cannot be described at them."""
        sizes = {**self.fields(), **params}
        streams = sizes.pop(STREAMS, 1)
        description = self._description_at(tuple(sizes.items()))
        items, item = counted_items(self.spec.step, sizes)
        unknown = Cost(flops=0, bytes=0, items=items, item=item)
        size = UserWorkloadSize(
            params=sizes, refused=dict.fromkeys(Dtype, ""), costs=dict.fromkeys(Dtype, unknown)
        )
        if description and description.size:
            size = description.size
        if streams != 1:
            size = dataclasses.replace(size, params={**sizes, STREAMS: streams})
        if reason := streams_obstacle(sizes.get(BATCH), streams):
            size = dataclasses.replace(size, refused=dict.fromkeys(Dtype, reason))
        return size

    def _describe_at(self, params: tuple[tuple[str, Scalar], ...]) -> _Description | None:
        """Describe the model at these sizes; None if that fails: the case then runs and reports the error."""
        if dict(params) == self._description.sizes:
            return self._description
        try:
            return _describe(self.spec, dict(params), self._run_job)
        except UsageError:
            return None


def remember(spec: ModelSpec) -> None:
    """Mark a model in the user's cache as requested, if the cache is writable."""
    with suppress(OSError):
        mark = _mark(spec)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()


def is_known(spec: ModelSpec) -> bool:
    """True if the user has requested this model before, so that a stored run may execute it."""
    return os.path.lexists(_mark(spec))


def check_known(source: str, texts: Sequence[str]) -> None:
    """Raise UsageError for a model that the user never requested from this folder.

    Stored runs and fleets may come from anybody, and a model is code. `source`: the run or fleet, for the
    message. `texts`: its models as the user typed them.
    """
    for text in texts:
        if not is_known(parse_spec(text, paths.working_folder())):
            raise UsageError(
                f"{source} measures {visible(text)}, which was never measured from this folder.",
                f"Add --model {visible(text)} to allow that it is executed.",
            )


def file_digests(models: Sequence[str], input_file: str = "") -> dict[str, str]:
    """SHA-256 of the models' source files and of the input file, by shown name; "" for a missing file.

    `models`: models as the user typed them. Raises UnreadableInput.
    """
    folder = paths.working_folder()
    specs = {relative(spec): spec for spec in (parse_spec(text, folder) for text in models)}
    files = {name: Path(spec.file) if spec.file else _source(spec) for name, spec in specs.items()}
    if input_file:
        files[PurePath(input_file).name] = Path(folder, paths.expanded(input_file))
    return {name: _digest(file) if file and os.path.isfile(file) else "" for name, file in files.items()}


def _digest(file: Path) -> str:
    try:
        with file.open("rb") as content:
            return file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise UnreadableInput(f"{file}: {error.strerror or error}") from error


def _mark(spec: ModelSpec) -> Path:
    """Path of the model's mark in the user's cache."""
    place = str(paths.resolved(spec.file)) if spec.file else f"{paths.resolved(spec.folder)}\0{spec.module}"
    name = sha256(f"{place}\0{spec.attribute}".encode(errors="replace")).hexdigest()[:24]
    return cache_folder("known-models") / name


def kinds_of(texts: Sequence[str]) -> list[str]:
    """The kinds of models as the user typed them. No file is executed."""
    folder = paths.working_folder()
    return list(dict.fromkeys(with_kind(parse_spec(text, folder)).kind for text in texts))


def with_kind(spec: ModelSpec) -> ModelSpec:
    """The spec with the kind that the file's imports imply. Raises UsageError for a missing file."""
    if spec.file and not os.path.exists(spec.file):
        hint = "A model is FILE.py or FILE.py:NAME, relative to the working folder."
        raise UsageError(f"There is no file {os.path.relpath(spec.file, spec.folder)}.", hint)
    if spec.file and not spec.file.endswith(SOURCE):
        return spec
    source = _source(spec)
    names = imported_packages(source) if source else set[str]()
    kinds = [kind for kind, packages in PACKAGES.items() if names.intersection(packages)]
    return dataclasses.replace(spec, kind=kinds[0] if kinds else TORCH)


def _source(spec: ModelSpec) -> Path | None:
    """The Python file of a model, or None if it has none or only an import would find it."""
    if spec.file:
        return Path(spec.file) if spec.file.endswith(SOURCE) else None
    return module_file(spec.module, [spec.folder, *sys.path])


def describe(
    specs: Sequence[ModelSpec], workload_names: Sequence[str], run_job_of: Callable[[str], RunJob]
) -> dict[str, UserModel]:
    """The models and their training steps by name. Raises UsageError for a mistake in a file.

    `workload_names`: names of other workloads, which no model may have. `run_job_of`: kind of model →
    function that runs a job in a worker for such models.
    """
    models: dict[str, UserModel] = {}
    for spec in map(with_kind, specs):
        run_job = run_job_of(spec.kind)
        description = _describe(spec, None, run_job)
        suffixes = [f"_{step}" for step in TOKENS_OF_STEP] if description.generates else [""]
        attribute = description.attribute.lower()
        full_name = f"{spec.stem}_{attribute}" if attribute else f"my_{spec.stem}"
        default_names = {f"{spec.stem}{suffix}" for suffix in (*suffixes, TRAIN_SUFFIX)}
        is_free = default_names.isdisjoint(workload_names)
        model_name = spec.stem if description.is_default and is_free else full_name
        steps = {model_name: (spec, description)}
        if description.generates:
            specs_of_steps = [dataclasses.replace(spec, step=step) for step in TOKENS_OF_STEP]
            steps = {
                f"{model_name}_{step_spec.step}": (step_spec, _describe(step_spec, None, run_job))
                for step_spec in specs_of_steps
            }
        if description.has_loss and spec.kind == TORCH and not spec.step:
            training = dataclasses.replace(spec, trains=True)
            steps[f"{model_name}{TRAIN_SUFFIX}"] = (training, _describe(training, None, run_job))
        for name, (step_spec, step_description) in steps.items():
            if name in workload_names:
                raise UsageError(
                    f"{spec.text}: accelbench has a workload named {name!r}.",
                    "Give the file, or the model in memory, another name.",
                )
            if name in models:
                raise UsageError(f"Two models are named {name!r}.", "Give one of the files another name.")
            models[name] = UserModel(name, step_spec, step_description, run_job)
    return models


def _describe(spec: ModelSpec, params: Mapping[str, Scalar] | None, run_job: RunJob) -> _Description:
    """Let a worker describe the model. Raises UsageError for a mistake in its file, or without an answer."""
    job: dict[str, Any] = {"kind": "describe", "spec": dataclasses.asdict(spec), "params": params}
    answer = run_job(job)
    if answer.reply is None or "described" not in answer.reply:
        hint = "Set a longer --timeout." if answer.status == "timeout" else answer.log[-500:].strip()
        message = f"{spec.text}: the process that imported it: {visible(answer.failure_reason)}."
        raise UsageError(message, visible(hint))
    try:
        description = msgspec.convert(answer.reply["described"], _Description)
    except msgspec.ValidationError as error:
        raise UsageError(f"{spec.text}: the worker's answer cannot be read: {error}.") from error
    if description.mistake or description.graph is None or description.size is None:
        text = description.mistake
        if not text.startswith(spec.text):
            line = f", line {description.line}" if description.line else ""
            at = " at " + ", ".join(f"{name}={value}" for name, value in params.items()) if params else ""
            text = f"{spec.text}{line}{at}: {text}"
        raise UsageError(visible(text), description.hint)
    return description


def _signatures(description: _Description, sizes: Mapping[str, Sequence[Scalar]]) -> str:
    """`Model(depth=2,4), inputs(batch=4, length=64)`. Names that are not in `sizes` have their defaults."""

    def signature(function: str, names: Sequence[str]) -> str:
        values = {name: ",".join(map(str, sizes.get(name, [description.sizes[name]]))) for name in names}
        return f"{function}({', '.join(f'{name}={text}' for name, text in values.items())})"

    input_sizes = [name for name in description.input_sizes if name not in description.model_sizes]
    model = signature(description.attribute or "model", description.model_sizes)
    return f"{model}, {signature('inputs', input_sizes)}"
