"""References to the user's models, and the kinds of models.

Standard library only, since workers under foreign interpreters import this module.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from types import MappingProxyType

from benchbench import paths
from benchbench.errors import UsageError

VARIABLE = "ACCELBENCH_MODELS"  # environment variable that passes the user's models to workers
CONFIG, SOURCE, PROGRAM, KERAS_FILE, ONNX_FILE = ".json", ".py", ".pt2", ".keras", ".onnx"
MEMORY_FOLDER = "accelbench-model-"  # prefix of the folder of a model in memory, which is written to a file
GENERIC_NAME = "model.py"  # file name that does not describe its model
HINT = (
    "Write FILE.py, FILE.py:Model, package.module:Model, FILE.pt2, FILE.onnx, FILE.keras, or the JSON file "
    "of a transformers configuration."
)


@dataclass(frozen=True, slots=True)
class ModelKind:
    """A kind of models: its noun for messages, the frameworks that run it, and how FLOPs are counted.

    `version` is the prefix of its workload versions. `engines`: default backends; (): all of `frameworks`.
    """

    noun: str
    frameworks: tuple[str, ...]
    flops_source: str
    version: str
    engines: tuple[str, ...] = ()


TORCH, KERAS, JAX, ONNX = "torch", "keras", "jax", "onnx"
TRAINING = "training"  # in place of a kind, for code that runs a training step of a torch module
KINDS: Mapping[str, ModelKind] = MappingProxyType(
    {
        TORCH: ModelKind("torch module", ("torch",), "counted by torch", "own"),
        KERAS: ModelKind(
            "Keras model",
            ("tensorflow", "torch", "jax"),
            "counted from its layers",
            "own-keras",
            engines=("tensorflow", "torch", "jax"),
        ),
        JAX: ModelKind("JAX function", ("jax",), "counted from its jaxpr", "own-jax"),
        ONNX: ModelKind("ONNX file", ("onnx",), "counted from its products and convolutions", "own-onnx"),
    }
)
# Steps of a language model: the processing of a prompt, and of one token after those in a cache.
PREFILL, DECODE = "prefill", "decode"
PROMPT, CONTEXT = "prompt", "context"  # names of their sizes: tokens of the prompt, and in the cache
TOKENS_OF_STEP = MappingProxyType({PREFILL: PROMPT, DECODE: CONTEXT})
# Module and name of the base classes of JAX modules, which have parameters or create them from a random key.
EQUINOX = ("equinox", "Module")
JAX_MODULES = (EQUINOX, ("flax.nnx", "Module"), ("flax.linen", "Module"))
KIND_OF_FILE = MappingProxyType({CONFIG: TORCH, PROGRAM: TORCH, KERAS_FILE: KERAS, ONNX_FILE: ONNX})
FILES = (SOURCE, *KIND_OF_FILE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Location of a model: a `file` or an importable `module`, and an `attribute` in it (empty: the default).

    `folder` is the folder in which the command ran; relative paths in the model's code refer to it.
    `is_quiet`: importing it starts no thread and uses no device, so a process may import it and fork.
    `kind` is one of `KINDS`. `trains`: measure a training step instead of the outputs. `step`: of a language
    model, one of `TOKENS_OF_STEP`; "": the whole model. `input` is a file with the first inputs.
    `as_they_are`: use the given weights; do not draw or calibrate any.
    """

    folder: str
    file: str = ""
    module: str = ""
    attribute: str = ""
    is_quiet: bool = False
    kind: str = TORCH
    trains: bool = False
    step: str = ""
    input: str = ""
    as_they_are: bool = False

    @property
    def is_config(self) -> bool:
        """True for a configuration of transformers, which contains no code."""
        return self.file.endswith(CONFIG)

    @property
    def is_program(self) -> bool:
        """True for a program saved by torch.export, which contains no code."""
        return self.file.endswith(PROGRAM)

    @property
    def is_keras_file(self) -> bool:
        """True for a model saved by Keras, which contains no code."""
        return self.file.endswith(KERAS_FILE)

    @property
    def stem(self) -> str:
        """Default name: `my_model` for `lib/my-model.py`, and `nanogpt` for `nanogpt/model.py`."""
        path = PurePath(self.file)
        name = path.stem if self.file else self.module.rpartition(".")[2]
        # The home folder is named after the user, and names of users are not stored.
        if path.name == GENERIC_NAME and path.parent.name and str(path.parent) != paths.home():
            name = path.parent.name
        word = "".join(letter if letter.isalnum() else "_" for letter in name).strip("_").lower()
        return word if word[:1].isalpha() else f"model_{word}".rstrip("_")

    @property
    def text(self) -> str:
        """Text for messages: `my_model.py:Model`."""
        name = PurePath(self.file).name if self.file else self.module
        return f"{name}:{self.attribute}" if self.attribute else name


def classes_imported(paths: Sequence[tuple[str, str]]) -> tuple[type, ...]:
    """Classes by module and name, for those modules that this process has imported."""
    return tuple(getattr(sys.modules[module], name) for module, name in paths if module in sys.modules)


def dtype_obstacle(file_dtype: str, dtype: str) -> str:
    """Reason why a file cannot be computed in `dtype`; empty if it can. `file_dtype` "" means any dtype."""
    if not file_dtype or dtype == file_dtype:
        return ""
    return f"the file computes in {file_dtype}, and accelbench converts none: ask for --dtype {file_dtype}"


def relative(spec: ModelSpec) -> str:
    """Path relative to the spec's folder; for a file elsewhere only its name, to reveal no local paths."""
    if not spec.file:
        return spec.text
    file, folder = PurePath(spec.file), PurePath(spec.folder)
    path = file.relative_to(folder) if file.is_relative_to(folder) else PurePath(file.name)
    return f"{path.as_posix()}:{spec.attribute}" if spec.attribute else path.as_posix()


def folder_of(spec: ModelSpec) -> str:
    """Folder of the model's code."""
    return str(PurePath(spec.file).parent) if spec.file else spec.folder


def moved(spec: ModelSpec, folders: Mapping[str, str]) -> ModelSpec:
    """The same model in moved folders, such as a checkout of another revision; `folders` maps old to new."""
    old_folder = folder_of(spec)
    new_folder = folders.get(old_folder, old_folder)
    file = str(PurePath(new_folder) / PurePath(spec.file).name) if spec.file else ""
    return dataclasses.replace(spec, folder=folders.get(spec.folder, spec.folder), file=file)


def looks_like_model(text: str) -> bool:
    """True if an argument names a model rather than a suite."""
    path, _, _ = text.partition(":")
    return path.endswith(FILES) or ":" in text


def parse_spec(text: str, folder: str) -> ModelSpec:
    """Parse `lib/my_model.py:Model`, relative to `folder`. Raises UsageError if it names no model."""
    path, colon, attribute = text.partition(":")
    if colon and not attribute.replace("_", "a").isalnum():
        raise UsageError(f"{text!r} names no model.", HINT)
    if path.endswith(FILES):
        kind = KIND_OF_FILE.get(PurePath(path).suffix, TORCH)
        return ModelSpec(folder=folder, file=str(PurePath(folder) / path), attribute=attribute, kind=kind)
    if attribute and all(part.isidentifier() for part in path.split(".")):
        return ModelSpec(folder=folder, module=path, attribute=attribute)
    raise UsageError(f"{text!r} names no model.", HINT)


def kind_of_version(version: str) -> str:
    """Kind of the model whose workload has this version."""
    prefix = version.partition(":")[0]
    return next((name for name, kind in KINDS.items() if kind.version == prefix), TORCH)


def as_text(models: Mapping[str, ModelSpec]) -> str:
    """Models by name as the value of the environment variable."""
    return json.dumps({name: dataclasses.asdict(spec) for name, spec in models.items()})


def from_text(text: str) -> dict[str, ModelSpec]:
    """Models by name from the value of the environment variable."""
    return {name: ModelSpec(**fields) for name, fields in json.loads(text or "{}").items()}


def counted_items(step: str, params: Mapping[str, object]) -> tuple[int, str]:
    """Number and unit of the items of a step: tokens of a language model, samples, or the call."""
    batch = params.get("batch")
    if type(batch) is not int or batch <= 0:
        return 1, "call"
    if not step:
        return batch, "sample"
    prompt = params.get(PROMPT, 1)
    return batch * (prompt if isinstance(prompt, int) else 1), "token"
