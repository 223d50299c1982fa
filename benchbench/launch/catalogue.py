"""All workloads by name, with the facts that a plan needs.

Workloads of accelbench are classes. Files of the user are imported by a separate process only, so a file that
exits, hangs or crashes is reported as a mistake in that file.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from pkgutil import iter_modules

from benchbench import paths, registry
from benchbench.errors import AccelbenchWarning, UsageError, unknown
from benchbench.launch import project
from benchbench.launch.project import UserCode, user_code
from benchbench.launch.user_files import (
    MORE,
    FileMistake,
    UserFilesProcess,
    UserWorkload,
    UserWorkloadSize,
    described_workloads,
    shown,
)
from benchbench.launch.user_models import TRAIN_SUFFIX, UserModel, UserModelSize, with_kind
from benchbench.model import user_model
from benchbench.model.case import Scalar
from benchbench.model.user_model import ModelSpec
from benchbench.registry import WORKLOADS
from benchbench.workloads.base import Workload

PATTERN = frozenset("*?[]")
MISSPELT = 0.85  # cutoff for `get_close_matches`: one wrong letter in about four
WorkloadKind = type[Workload] | UserWorkload | UserModel  # without parameters
SizedWorkload = Workload | UserWorkloadSize | UserModelSize  # with parameters
_models: dict[str, UserModel] = {}  # the described models by name
# The models of checked-out revisions, or the mistake in a model's file.
_models_of: dict[UserCode, Mapping[str, UserModel | UsageError]] = {}


class UserCatalogue:
    """The workloads in the user's files, and the mistakes in these files.

    A file is imported once, when it may define a requested workload.
    """

    def __init__(
        self,
        files: Mapping[str, Path],
        mistakes: Sequence[FileMistake],
        process: UserFilesProcess,
        shipped: Set[str],
    ) -> None:
        self._files, self._mistakes, self._process, self._shipped = files, mistakes, process, shipped
        self._read = lru_cache(maxsize=None)(self._read_file)

    def workload(self, name: str) -> UserWorkload | None:
        """The workload of that name, or None. Imports only files whose name begins the workload's name."""
        found = [each for stem in self._stems(name) for each in self._read(stem)[0] if each.name == name]
        return found[-1] if found else None

    def mistake(self, name: str) -> FileMistake | None:
        """The mistake in the file that should define the workload, or None."""
        named = [each for stem in self._stems(name) for each in self._read(stem)[1] if each.stem]
        return max(named, key=lambda each: len(each.stem), default=None)

    def workload_names(self) -> set[str]:
        """The names of the workloads in all files."""
        return {each.name for stem in self._files for each in self._read(stem)[0]}

    def mistakes(self) -> list[FileMistake]:
        """The mistakes in all folders and files."""
        return [*self._mistakes, *(each for stem in self._files for each in self._read(stem)[1])]

    def _stems(self, name: str) -> list[str]:
        return [stem for stem in self._files if f"{name}_".startswith(f"{stem}_")]

    def _read_file(self, stem: str) -> tuple[list[UserWorkload], list[FileMistake]]:
        file = self._files[stem]
        workloads, mistakes = described_workloads(file, f"{WORKLOADS}.{stem}", self._process)
        shadows = [_shadow(file, each.name) for each in workloads if each.name in self._shipped]
        return [each for each in workloads if each.name not in self._shipped], [*mistakes, *shadows]


def workload_named(name: str, code: UserCode | None = None) -> WorkloadKind:
    """The workload of that name. Raises UsageError if there is none or its file has a mistake.

    `code`: the user's code; by default that of accelbench.toml and the environment.
    """
    if model := _model_named(name, code):
        return model
    if shipped := registry.find_class(WORKLOADS, name, Workload):  # type: ignore[type-abstract]
        return shipped
    found = user_catalogue(code)
    if workload := found.workload(name):
        return workload
    if mistake := found.mistake(name):
        raise UsageError(mistake.text, MORE)
    if name.endswith(TRAIN_SUFFIX) and (model := _models.get(name.removesuffix(TRAIN_SUFFIX))):
        raise UsageError(f"{model.name} has no training step.", model.training_hint)
    raise UsageError(f"No workload named {name!r}.", suggested(name, [*workload_names(), *_models]))


def _model_named(name: str, code: UserCode | None) -> UserModel | None:
    """The user's model of that name, or None. Raises UsageError if only that revision lacks it."""
    if code is None or code not in _models_of:
        return _models.get(name)
    model = _models_of[code].get(name)
    if isinstance(model, UsageError):
        raise model
    if model is None and name in _models:
        raise UsageError(f"No model named {name!r} in that revision.", "A later commit added it.")
    return model


def is_mistaken_model(name: str, code: UserCode) -> bool:
    """Whether the model's file in that code has a mistake."""
    return isinstance(_models_of.get(code, {}).get(name), UsageError)


def kind_of(name: str, code: UserCode | None = None) -> WorkloadKind:
    """The workload of a case, by its present or former name. Raises UsageError."""
    try:
        return workload_named(name, code)
    except UsageError:
        if present := former_names().get(name):
            return workload_named(present)
        raise


def suggested(name: str, known: Sequence[str]) -> str:
    """Hint for an unknown name: the names that contain it or all of its words, else the most similar ones.

    For a misspelt name only similar ones are suggested.
    """
    words = set(name.split("_"))
    matches = (other for other in known if name in other or words.issubset(other.split("_")))
    near = sorted(matches, key=lambda other: not other.startswith(name))
    if not (name and near) or get_close_matches(name, known, n=1, cutoff=MISSPELT):
        return unknown("workloads", name, list(known))
    *others, last = map(repr, near)
    return f"Did you mean {', '.join(others)}{' or ' if others else ''}{last}?"


def matching(names: Iterable[str], among: Sequence[str] = ()) -> tuple[str, ...]:
    """Replace patterns such as `gpt2*` by the workloads that they match. Raises UsageError.

    `among`: the workloads that patterns may match; (): all. A former name is replaced by the present one,
    with an AccelbenchWarning.
    """
    known = among or [*workload_names(), *_models]
    found: dict[str, None] = {}
    for name in names:
        if not PATTERN.intersection(name):
            found[_present(name)] = None
            continue
        matched = fnmatch.filter(known, name)
        if not matched:
            plain = "".join(each for each in name if each not in PATTERN)
            raise UsageError(f"No workload matches {name!r}.", suggested(plain, known))
        found |= dict.fromkeys(matched)
    return tuple(found)


def is_known(name: str) -> bool:
    """True if a workload has this name. Imports only the user's files that may define it."""
    try:
        workload_named(name)
    except UsageError:
        return False
    return True


def _present(name: str) -> str:
    """Present name of a renamed workload, with a warning; any other name unchanged."""
    if not is_known(name) and (present := former_names().get(name)):
        warnings.warn(AccelbenchWarning(f"{name} is called {present} now"), stacklevel=2)
        return present
    return name


@contextmanager
def with_models(models: Mapping[str, UserModel]) -> Iterator[None]:
    """Make the user's models known as workloads, also to workers started inside the context."""
    _models.update(models)
    with project.with_models({name: model.spec for name, model in models.items()}):
        yield


@contextmanager
def with_models_of(code: UserCode, models: Mapping[str, UserModel | UsageError]) -> Iterator[None]:
    """Set the models of a revision's code, or the mistakes in their files, inside the context."""
    _models_of[code] = models
    try:
        yield
    finally:
        del _models_of[code]


def models_of(specs: Sequence[ModelSpec]) -> list[str] | None:
    """The names of these models and their training steps; None if one is not described yet."""
    asked = {*map(with_kind, specs)}
    known = {
        name: dataclasses.replace(each.spec, is_quiet=False, trains=False) for name, each in _models.items()
    }
    return [name for name, spec in known.items() if spec in asked] if asked <= {*known.values()} else None


def models_in(names: Iterable[str]) -> dict[str, str]:
    """The user's models among the names: name → the model as the user typed it."""
    return {name: user_model.relative(_models[name].spec) for name in names if name in _models}


def work_version(name: str, params: Mapping[str, Scalar], code: UserCode | None = None) -> int | str:
    """The version of a workload's computation at these parameters. Raises UsageError."""
    kind = workload_named(name, code)
    return kind(**params).work_version if isinstance(kind, UserModel) else kind.version


def workload_at(name: str, params: Mapping[str, Scalar]) -> SizedWorkload:
    """The workload at these parameters. Raises UsageError."""
    kind = workload_named(name)
    try:
        return kind(**params)
    except UsageError as error:
        hint = error.hint or f"accelbench list workloads shows the parameters of {name} with their defaults."
        raise UsageError(f"{name}: {error}", hint) from error


def workload_names() -> list[str]:
    """The names of every workload that can be measured, sorted."""
    return sorted({*registry.entry_names(WORKLOADS), *user_catalogue().workload_names()})


def former_names() -> dict[str, str]:
    """Former name → present name of renamed workloads. Imports all workloads."""
    names = workload_names()
    formerly = {workload_named(name).formerly: name for name in names}
    return {former: name for former, name in formerly.items() if former and former not in names}


def user_file_warnings() -> list[str]:
    """A line for each mistake in the user's files and folders."""
    return [f"warning: {each.text}" for each in user_catalogue().mistakes()]


def user_catalogue(code: UserCode | None = None) -> UserCatalogue:
    """The catalogue of the user's folders, which is read again after a file has changed."""
    code = code or user_code()
    return _catalogue(code, tuple(_state(code)))


def _state(code: UserCode) -> Iterator[tuple[str, int, int]]:
    """The path, time of the last change and size of each file."""
    for path in (path for folder in code.workloads for path in paths.listed(folder, "*.py")):
        found = path.stat()
        yield str(path), found.st_mtime_ns, found.st_size


@lru_cache(maxsize=3)  # the current code, and both sides of a comparison
def _catalogue(code: UserCode, _state: object) -> UserCatalogue:
    """`_state`: part of the cache key, which changes with the files."""
    folders = tuple(map(Path, code.workloads))
    mistakes = [
        FileMistake(f"{shown(each)}: there is no such folder") for each in folders if not os.path.isdir(each)
    ]
    shipped = {*registry.entry_names(WORKLOADS)}
    return UserCatalogue(_files(folders, shipped, mistakes), mistakes, UserFilesProcess(code), shipped)


def _files(folders: Sequence[Path], shipped: set[str], mistakes: list[FileMistake]) -> dict[str, Path]:
    """The importable files by name. Adds the others to `mistakes`."""
    taken, files = {*shipped, *registry.module_names(WORKLOADS)}, dict[str, Path]()
    for folder in folders:
        for module in iter_modules([str(folder)]):
            file = folder / (f"{module.name}/__init__.py" if module.ispkg else f"{module.name}.py")
            if module.name in taken:
                mistakes.append(_shadow(file, module.name))
            elif module.name in files:
                mistakes.append(
                    FileMistake(f"{shown(file)} is not used: {shown(files[module.name])} comes first")
                )
            elif not module.name.startswith("_"):
                files[module.name] = file
    return files


def _shadow(file: Path, name: str) -> FileMistake:
    return FileMistake(f"{shown(file)}: {name} is not used, since accelbench has one of that name")
