"""A user's own model, as what is typed names it.

Standard library only: workers under foreign interpreters import this too.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from types import MappingProxyType

from benchbench.errors import UsageError

VARIABLE = "ACCELBENCH_MODELS"  # the variable that tells workers which models of the user's there are
CONFIG, SOURCE, PROGRAM, KERAS_FILE, ONNX_FILE = ".json", ".py", ".pt2", ".keras", ".onnx"
WAYS = (
    "Write FILE.py, FILE.py:Model, package.module:Model, FILE.pt2, FILE.onnx, FILE.keras, or the JSON file "
    "of a transformers configuration."
)


@dataclass(frozen=True, slots=True)
class ModelKind:
    """What a model is written in: a `noun` for one, the frameworks that run it, and what counts its work.

    `version`: what the version of its work begins with. `engines`: the backends that measure it if nobody
    names others; (): all of its frameworks.
    """

    noun: str
    frameworks: tuple[str, ...]
    counted: str
    version: str
    engines: tuple[str, ...] = ()


TORCH, KERAS, JAX, ONNX = "torch", "keras", "jax", "onnx"
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
        ONNX: ModelKind("file of ONNX", ("onnx",), "counted from its products and convolutions", "own-onnx"),
    }
)
# Where the classes of JAX modules are, which hold their parameters or make them from a random key.
EQUINOX = ("equinox", "Module")
MODULES_OF_JAX = (EQUINOX, ("flax.nnx", "Module"), ("flax.linen", "Module"))
KIND_OF_FILE = MappingProxyType({CONFIG: TORCH, PROGRAM: TORCH, KERAS_FILE: KERAS, ONNX_FILE: ONNX})
FILES = (SOURCE, *KIND_OF_FILE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Where a model is: a `file`, or a `module` that can be imported; there, by default, the obvious name.

    `folder`: the one it was asked for in, where what it opens by a relative path is found, too. `is_quiet`:
    importing it starts no thread and uses no device, so that a process may do it and be forked then. `kind`:
    one of `KINDS`. `trains`: not its outputs are meant, but a step of its training. `input`: a file of arrays
    that are its first inputs. `as_they_are`: no constant tensor is drawn anew, no batch norm calibrated.
    """

    folder: str
    file: str = ""
    module: str = ""
    attribute: str = ""
    is_quiet: bool = False
    kind: str = TORCH
    trains: bool = False
    input: str = ""
    as_they_are: bool = False

    @property
    def is_config(self) -> bool:
        """Whether it is a configuration of transformers, which is no code."""
        return self.file.endswith(CONFIG)

    @property
    def is_program(self) -> bool:
        """Whether it is a program that torch.export has saved, which is no code."""
        return self.file.endswith(PROGRAM)

    @property
    def is_saved(self) -> bool:
        """Whether it is a model that Keras has saved, which is no code."""
        return self.file.endswith(KERAS_FILE)

    @property
    def stem(self) -> str:
        """What it is called where it has no other name: `my_model` for `lib/my-model.py`."""
        name = PurePath(self.file).stem if self.file else self.module.rpartition(".")[2]
        word = "".join(letter if letter.isalnum() else "_" for letter in name).strip("_").lower()
        return word if word[:1].isalpha() else f"model_{word}".rstrip("_")

    @property
    def text(self) -> str:
        """As it is shown: `my_model.py:Model`."""
        name = PurePath(self.file).name if self.file else self.module
        return f"{name}:{self.attribute}" if self.attribute else name


def classes_imported(places: Sequence[tuple[str, str]]) -> tuple[type, ...]:
    """The classes at these places, module and name, of the libraries that this process has imported."""
    return tuple(getattr(sys.modules[module], name) for module, name in places if module in sys.modules)


def other_than_file(floats: str, dtype: str) -> str:
    """Why a file whose floats have that type cannot be computed in `dtype`, else ""; `floats` "": any can."""
    if not floats or dtype == floats:
        return ""
    return f"the file computes in {floats}, and accelbench converts none: ask for --dtype {floats}"


def relative(spec: ModelSpec) -> str:
    """As it is asked for in its folder; of a file elsewhere its name, which says nothing of this machine."""
    if not spec.file:
        return spec.text
    file, folder = PurePath(spec.file), PurePath(spec.folder)
    path = file.relative_to(folder) if file.is_relative_to(folder) else PurePath(file.name)
    return f"{path.as_posix()}:{spec.attribute}" if spec.attribute else path.as_posix()


def folder_of(spec: ModelSpec) -> str:
    """The folder that its code is in."""
    return str(PurePath(spec.file).parent) if spec.file else spec.folder


def moved(spec: ModelSpec, folders: Mapping[str, str]) -> ModelSpec:
    """The same model where its folders are now, by where they were: in a checkout of another revision."""
    own = folder_of(spec)
    file = str(PurePath(folders.get(own, own)) / PurePath(spec.file).name) if spec.file else ""
    return dataclasses.replace(spec, folder=folders.get(spec.folder, spec.folder), file=file)


def looks_like_model(text: str) -> bool:
    """Whether what was typed names a model, and no suite."""
    path, _, _ = text.partition(":")
    return path.endswith(FILES) or ":" in text


def parse_spec(text: str, folder: str) -> ModelSpec:
    """`lib/my_model.py:Model` → where that is, seen from `folder`. Raises UsageError for what is neither."""
    path, colon, attribute = text.partition(":")
    if colon and not attribute.replace("_", "a").isalnum():
        raise UsageError(f"{text!r} names no model.", WAYS)
    if path.endswith(FILES):
        kind = KIND_OF_FILE.get(PurePath(path).suffix, TORCH)
        return ModelSpec(folder=folder, file=str(PurePath(folder) / path), attribute=attribute, kind=kind)
    if attribute and all(part.isidentifier() for part in path.split(".")):
        return ModelSpec(folder=folder, module=path, attribute=attribute)
    raise UsageError(f"{text!r} names no model.", WAYS)


def kind_of_version(version: str) -> str:
    """The kind of the model whose work has this version."""
    begin = version.partition(":")[0]
    return next((name for name, kind in KINDS.items() if kind.version == begin), TORCH)


def as_text(models: Mapping[str, ModelSpec]) -> str:
    """Models by name, as the variable holds them."""
    return json.dumps({name: dataclasses.asdict(spec) for name, spec in models.items()})


def from_text(text: str) -> dict[str, ModelSpec]:
    """The models by name that the variable holds."""
    return {name: ModelSpec(**fields) for name, fields in json.loads(text or "{}").items()}


def shown_sizes(params: Mapping[str, object], names: Sequence[str]) -> str:
    """`batch=4, length=64`, of those names."""
    return ", ".join(f"{name}={params[name]}" for name in names)
