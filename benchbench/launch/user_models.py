"""A user's models as what a plan needs to know of them. They are never imported here.

Importing what a model needs may take longer than a workload's file is given, and needs the framework: so a
worker describes them, within the time of any job.
"""

from __future__ import annotations

import ast
import dataclasses
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
from benchbench.launch.transport import Answer, Message
from benchbench.machine.environment import cache_folder
from benchbench.model.case import Dtype, Phase, Scalar
from benchbench.model.measurement import Cost, ModelFacts
from benchbench.model.placement import Strategy
from benchbench.model.user_model import (
    JAX,
    KERAS,
    KINDS,
    SOURCE,
    TORCH,
    ModelSpec,
    dtype_obstacle,
    parse_spec,
    relative,
)
from benchbench.reading import read_file
from benchbench.workloads._optimizers import refuses_to_train
from benchbench.workloads.base import NO_FLOAT8
from benchbench.workloads.steps import DRAWS_TOLERATED

Ask = Callable[[Message], Answer]
PACKAGES: Mapping[str, tuple[str, ...]] = MappingProxyType(  # kind of model → what its file imports
    {
        KERAS: ("keras", "keras_hub", "tensorflow"),
        TORCH: ("torch", "transformers"),
        JAX: ("jax", "flax", "equinox"),
    }
)
MOST_SOURCE = 2**20  # bytes of a source file
ENDS = (".py", "/__init__.py")
TRAIN = "_train"  # what the name of a model's training step ends with
BATCH = "batch"  # the parameter that is the number of samples, if there is one


class _Graph(msgspec.Struct):
    """What a step at some sizes costs; see `worker/torch_graph.py`."""

    digest: str
    flops: int
    parameters: int
    constants: int
    floats: int
    other_bytes: int
    takes_images: bool
    takes: list[str]
    gives: list[str]
    data: str = ""
    dtype: str = ""  # that its floats have, where it has them in a file
    weights_dtype: str = ""  # dtype of the weights of a new module, unless it is float32

    @property
    def facts(self) -> ModelFacts:
        """The interface of the model, and its size."""
        return ModelFacts(
            inputs=tuple(self.takes), outputs=tuple(self.gives), parameters=self.parameters, data=self.data
        )


class _Described(msgspec.Struct):
    """A model, or what is wrong with its file."""

    attribute: str = ""
    is_default: bool = False
    sizes: dict[str, Scalar] = {}
    of_model: list[str] = []
    of_inputs: list[str] = []
    graph: _Graph | None = None
    import_s: float = 0.0
    can_be_preloaded: bool = False
    has_loss: bool = False
    mistake: str = ""
    hint: str = ""
    line: int | None = None


@dataclass(frozen=True, slots=True)
class UserModelSize:
    """A user's model at given sizes."""

    params: dict[str, Scalar]
    flops: int
    floats: int  # in all tensors that a step must move: parameters, inputs, outputs
    other_bytes: int  # of those that are no floats
    work_version: str
    facts: ModelFacts | None = None  # None: it cannot be described at these sizes
    file_dtype: str = ""
    trains: bool = False
    multiplications_saved: float | None = None  # nobody counted the convolutions
    backward_passes: int = 0

    def refuses(self, dtype: Dtype) -> str:
        """Why it cannot be computed in `dtype`, else ""."""
        if dtype is Dtype.INT8:
            return "accelbench does not quantise user models"
        if dtype is Dtype.FLOAT8:
            return NO_FLOAT8
        if self.trains and (reason := refuses_to_train(self.params, dtype)):
            return reason
        if dtype is Dtype.TF32 and not self.flops:
            return f"{dtype} is a way to multiply, and it multiplies nothing"
        return dtype_obstacle(self.file_dtype, dtype)

    def cost(self, dtype: Dtype) -> Cost:
        """FLOPs as torch counts them; bytes of all tensors once, a lower bound."""
        batch = self.params.get(BATCH)
        is_batch = type(batch) is int and batch > 0
        return Cost(
            flops=self.flops,
            bytes=self.floats * dtype.storage.itemsize + self.other_bytes,
            items=int(batch) if is_batch and batch is not None else 1,
            item="sample" if is_batch else "call",
        )


class UserModel:
    """What a worker says of a user's model, before sizes are chosen."""

    __name__: str  # it is used wherever a workload's class is
    draws_tolerated = DRAWS_TOLERATED
    refused_on_cpu = formerly = ""
    worlds = (1,)
    is_user_model = True

    def __init__(self, name: str, spec: ModelSpec, facts: _Described, ask: Ask) -> None:
        assert facts.graph
        self.name = self.__name__ = name
        self.spec = dataclasses.replace(spec, is_quiet=facts.can_be_preloaded)
        self.version = _version(spec, facts.graph)
        self.phase = Phase.TRAIN if spec.trains else Phase.FORWARD
        self.summary = _called(facts, {})
        self._facts, self._graph, self._ask = facts, facts.graph, ask
        self.kind = KINDS[spec.kind]
        self._at = lru_cache(maxsize=None)(self._facts_at)

    @property
    def dtype(self) -> Dtype:
        """Default dtype: that of the file or of the module's weights, else float32."""
        name = self._graph.dtype or self._graph.weights_dtype
        return Dtype(name) if name in tuple(Dtype) else Dtype.FLOAT32

    def told(self, sizes: Mapping[str, Sequence[Scalar]]) -> list[str]:
        """What a user is told of it before it is measured, in lines; figures hold at the first of `sizes`."""
        facts = self._at(tuple({**self.fields(), **{name: each[0] for name, each in sizes.items()}}.items()))
        graph = facts.graph if facts else None  # else its row will say why it has none
        several = [f"{name}={each[0]}" for name, each in sizes.items() if len(each) > 1]
        at = f" at {' '.join(several)}" if several else ""
        if self.spec.trains:
            counted = f", {quantity(graph.flops, 'FLOP')} there and back{at}" if graph else ""
            return [f"{self.name}: a step of its training{counted}; likewise verified"]
        lines, also = [f"{self.name}: {_called(self._facts, sizes)}"], ""
        if graph:
            millions = graph.parameters / 1e6
            counted = f"{quantity(graph.flops, 'FLOP')} a step{at} ({self.kind.counted})"
            lines = [f"{lines[0]}; {millions:.3g} M parameters, {counted}"]
            constant = f"{graph.constants} constant tensors (biases of zeros, say)"
            also = f"; {constant} get random numbers: none is dropped unseen"
            if self.spec.as_they_are:
                also = f", with its weights as they are: whether {constant} are dropped cannot be seen"
            also = also if graph.constants else ""
        given = f", on the inputs in {Path(self.spec.input).name}" if self.spec.input else ""
        lines.append(f"each engine is verified against its own float64{given}{also}")
        if self._facts.has_loss and self.spec.kind != TORCH:
            lines.append(
                f"its loss is not used: accelbench trains torch modules, and this is a {self.kind.noun}"
            )
        return lines

    @property
    def how_to_train(self) -> str:
        """What gives it a training step, or why nothing does: the hint where somebody asks for one."""
        if self.spec.kind != TORCH:
            return f"accelbench trains torch modules, and this is a {self.kind.noun}."
        return "A Python file that makes the model and defines loss(output, target) has one."

    def modes(self, backend: type[Backend]) -> list[str]:
        """The modes that it is tried in if nobody names one: only images can lie channels last."""
        usual = backend.model_modes or backend.modes[:1]
        return [mode for mode in usual if mode in backend.modes or self._graph.takes_images]

    def fields(self) -> dict[str, Scalar]:
        """Parameter → default."""
        return dict(self._facts.sizes)

    def strategies(self, framework: str) -> tuple[Strategy, ...]:
        """None: nothing says how devices would divide it."""
        return ()

    def frameworks(self) -> list[str]:
        """The frameworks that run a model of its kind."""
        return list(self.kind.frameworks)

    @property
    def lacking(self) -> Mapping[str, str]:
        """Framework that cannot run it → why."""
        others = {name for kind in KINDS.values() for name in kind.frameworks}
        reason = f"only engines that take a {self.kind.noun} can run it"
        return dict.fromkeys(others.difference(self.kind.frameworks), reason)

    def __call__(self, **params: Scalar) -> UserModelSize:
        """The model at these sizes. Where it cannot be described at them, its work counts as none."""
        chosen = {**self.fields(), **params}
        facts = self._at(tuple(chosen.items()))
        if facts is None:
            return UserModelSize(params=chosen, flops=0, floats=0, other_bytes=0, work_version="")
        assert facts.graph
        return UserModelSize(
            params=chosen,
            flops=facts.graph.flops,
            floats=facts.graph.floats,
            other_bytes=facts.graph.other_bytes,
            work_version=_version(self.spec, facts.graph),
            facts=facts.graph.facts,
            file_dtype=facts.graph.dtype,
            trains=self.spec.trains,
        )

    def _facts_at(self, params: tuple[tuple[str, Scalar], ...]) -> _Described | None:
        """None where it cannot be described so: it is measured beside the others, and its row says why."""
        if (chosen := dict(params)) == self.fields():
            return self._facts
        try:
            return _asked(self.spec, chosen, self._ask)
        except UsageError:
            return None


def _version(spec: ModelSpec, graph: _Graph) -> str:
    return f"{KINDS[spec.kind].version}:{graph.digest}"


def remember(spec: ModelSpec) -> None:
    """Keep that the user has asked for this model, so far as there is a cache to keep it in."""
    with suppress(OSError):
        mark = _mark(spec)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()


def is_known(spec: ModelSpec) -> bool:
    """Whether the user has ever asked for this model here: what a stored run names may be somebody else's."""
    return os.path.lexists(_mark(spec))


def check_known(what: str, texts: Sequence[str]) -> None:
    """Raise UsageError for a model of something stored that the user never asked for from this folder.

    What is stored may come from anybody, and a model is code. `what`: the run or fleet that names it.
    """
    for text in texts:
        if not is_known(parse_spec(text, paths.working_folder())):
            raise UsageError(
                f"{what} measures {visible(text)}, which was never measured from this folder.",
                f"--model {visible(text)} says that it may be executed.",
            )


def file_digests(models: Sequence[str], given: str = "") -> dict[str, str]:
    """What tells one file from another, by what each is called; "" for one that is not here.

    `models`: as they are asked for; of a module that can be imported its source. `given`: a file of inputs.
    """
    folder = paths.working_folder()
    specs = {relative(spec): spec for spec in (parse_spec(text, folder) for text in models)}
    files = {name: Path(spec.file) if spec.file else _source(spec) for name, spec in specs.items()}
    if given:
        files[PurePath(given).name] = Path(folder, paths.expanded(given))
    return {name: _digest(file) if file and os.path.isfile(file) else "" for name, file in files.items()}


def _digest(file: Path) -> str:
    """Raises UnreadableInput."""
    try:
        with file.open("rb") as content:
            return file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise UnreadableInput(f"{file}: {error.strerror or error}") from error


def _mark(spec: ModelSpec) -> Path:
    where = str(paths.resolved(spec.file)) if spec.file else f"{paths.resolved(spec.folder)}\0{spec.module}"
    name = sha256(f"{where}\0{spec.attribute}".encode(errors="replace")).hexdigest()[:24]
    return cache_folder("known-models") / name


def kinds_of(texts: Sequence[str]) -> list[str]:
    """The kinds of the models that are asked for so, as far as their sources tell: none is executed."""
    folder = paths.working_folder()
    return list(dict.fromkeys(with_kind(parse_spec(text, folder)).kind for text in texts))


def with_kind(spec: ModelSpec) -> ModelSpec:
    """The spec with the kind that its file tells by what it imports; it is not executed.

    Raises UsageError where there is no such file.
    """
    if spec.file and not os.path.exists(spec.file):
        hint = "A model is FILE.py or FILE.py:NAME, seen from the working folder."
        raise UsageError(f"There is no file {os.path.relpath(spec.file, spec.folder)}.", hint)
    if spec.file and not spec.file.endswith(SOURCE):
        return spec
    names = _imported_by(_source(spec))
    kinds = [kind for kind, packages in PACKAGES.items() if names.intersection(packages)]
    return dataclasses.replace(spec, kind=kinds[0] if kinds else TORCH)


def _source(spec: ModelSpec) -> Path | None:
    """The file that a spec is executed from, as far as it can be found without importing anything."""
    if spec.file:
        return Path(spec.file) if spec.file.endswith(SOURCE) else None
    inner = spec.module.replace(".", "/")
    ways = (Path(folder) / f"{inner}{end}" for folder in (spec.folder, *sys.path) for end in ENDS)
    return next((path for path in ways if os.path.isfile(path)), None)


def _imported_by(source: Path | None) -> set[str]:
    """The packages that a file imports anywhere in it."""
    if source is None:
        return set()
    try:
        body = ast.walk(ast.parse(read_file(source, MOST_SOURCE)))
    except (UnreadableInput, SyntaxError, ValueError, RecursionError, MemoryError):
        return set()  # the worker will tell
    names: set[str] = set()
    for each in body:
        if isinstance(each, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in each.names)
        elif isinstance(each, ast.ImportFrom) and each.module and not each.level:
            names.add(each.module.partition(".")[0])
    return names


def describe(
    specs: Sequence[ModelSpec], taken: Sequence[str], ask_of: Callable[[str], Ask]
) -> dict[str, UserModel]:
    """The models by name. Raises UsageError for what is wrong with a file.

    `taken`: names that other workloads have. `ask_of`: what puts a job to a worker that takes such a kind.
    """
    found: dict[str, UserModel] = {}
    for spec in map(with_kind, specs):
        ask = ask_of(spec.kind)
        facts = _asked(spec, None, ask)
        full_name = f"{spec.stem}_{facts.attribute.lower()}"
        is_short = facts.is_default and not {spec.stem, f"{spec.stem}{TRAIN}"}.intersection(taken)
        name = spec.stem if is_short else full_name
        steps = {name: (spec, facts)}
        if facts.has_loss and spec.kind == TORCH:
            training = dataclasses.replace(spec, trains=True)
            steps[f"{name}{TRAIN}"] = (training, _asked(training, None, ask))
        for own, (step, of_step) in steps.items():
            if own in taken:
                raise UsageError(
                    f"{spec.text}: accelbench has a workload named {own!r}.",
                    "Give the file, or the model in memory, another name.",
                )
            if own in found:
                raise UsageError(f"Two models are named {own!r}.", "Give one of the files another name.")
            found[own] = UserModel(own, step, of_step, ask)
    return found


def _asked(spec: ModelSpec, params: Mapping[str, Scalar] | None, ask: Ask) -> _Described:
    """Raises UsageError."""
    job: dict[str, Any] = {"kind": "describe", "spec": dataclasses.asdict(spec), "params": params}
    answer = ask(job)
    if answer.reply is None or "described" not in answer.reply:
        outcome = (answer.reply or {}).get("outcome", {})
        reason = answer.message or str(outcome.get("message", "")) if isinstance(outcome, dict) else ""
        hint = "--timeout gives it longer." if answer.status == "timeout" else answer.log[-500:].strip()
        raise UsageError(f"{spec.text}: the process that imported it: {visible(reason)}.", visible(hint))
    try:
        facts = msgspec.convert(answer.reply["described"], _Described)
    except msgspec.ValidationError as error:
        raise UsageError(f"{spec.text}: the worker's answer cannot be read: {error}.") from error
    if facts.mistake or facts.graph is None:
        line = f", line {facts.line}" if facts.line else ""
        at = "" if params is None else " at " + ", ".join(f"{name}={each}" for name, each in params.items())
        # A mistake about the file begins with its name.
        text = (
            facts.mistake
            if facts.mistake.startswith(spec.text)
            else f"{spec.text}{line}{at}: {facts.mistake}"
        )
        raise UsageError(visible(text), facts.hint)
    return facts


def _called(facts: _Described, sizes: Mapping[str, Sequence[Scalar]]) -> str:
    """`Model(depth=2,4), inputs(batch=4, length=64)`: with their defaults those that are not in `sizes`."""

    def with_sizes(name: str, own: Sequence[str]) -> str:
        values = {each: ",".join(map(str, sizes.get(each, [facts.sizes[each]]))) for each in own}
        return f"{name}({', '.join(f'{each}={text}' for each, text in values.items())})"

    of_inputs = [each for each in facts.of_inputs if each not in facts.of_model]
    return f"{with_sizes(facts.attribute or 'model', facts.of_model)}, {with_sizes('inputs', of_inputs)}"
