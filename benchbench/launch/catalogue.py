"""All workloads by name, with the facts that a plan needs.

The workloads of accelbench are classes. The user's files are imported by a separate process only, so a file
that exits, hangs or crashes is reported as a mistake in that file.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from pkgutil import iter_modules

from benchbench import paths, registry
from benchbench.errors import UsageError, unknown
from benchbench.launch import project
from benchbench.launch.project import UserCode, user_code
from benchbench.launch.transport import RunJob
from benchbench.launch.user_files import (
    HINT,
    FileMistake,
    UserFilesProcess,
    UserWorkload,
    UserWorkloadSize,
    described_workloads,
    relative_path,
)
from benchbench.launch.user_models import TRAIN_SUFFIX, UserModel, with_kind
from benchbench.model import user_model
from benchbench.model.case import Scalar
from benchbench.model.user_model import ModelSpec
from benchbench.registry import WORKLOADS
from benchbench.workloads.base import Workload

PATTERN_CHARACTERS = frozenset("*?[]")
MISSPELT_CUTOFF = 0.85  # for `get_close_matches`: one wrong letter of seven
WorkloadKind = type[Workload] | UserWorkload | UserModel  # without parameters
SizedWorkload = Workload | UserWorkloadSize  # with parameters
_models: dict[str, UserModel] = {}  # the described models by name
# The models of checked-out revisions by name, or the mistake in a model's file.
_revision_models: dict[UserCode, Mapping[str, UserModel | UsageError]] = {}


class UserCatalogue:
    """The workloads in the user's files, and the mistakes in these files.

    A file is imported once, when it may define a requested workload.
    """

    def __init__(
        self,
        files: Mapping[str, Path],
        mistakes: Sequence[FileMistake],
        run_job: RunJob,
        shipped: Set[str],
    ) -> None:
        self._files, self._mistakes, self._run_job, self._shipped = files, mistakes, run_job, shipped
        self._read = lru_cache(maxsize=None)(self._read_file)

    def workload(self, name: str) -> UserWorkload | None:
        """The workload of that name, or None. Imports only files whose name begins the workload's name."""
        workloads = [workload for stem in self._stems(name) for workload in self._read(stem)[0]]
        return next((workload for workload in reversed(workloads) if workload.name == name), None)

    def mistake(self, name: str) -> FileMistake | None:
        """The mistake in the file that should define the workload, or None."""
        mistakes = [mistake for stem in self._stems(name) for mistake in self._read(stem)[1] if mistake.stem]
        return max(mistakes, key=lambda mistake: len(mistake.stem), default=None)

    def workload_names(self) -> set[str]:
        """The names of the workloads in all files."""
        return {workload.name for stem in self._files for workload in self._read(stem)[0]}

    def mistakes(self) -> list[FileMistake]:
        """The mistakes in all folders and files."""
        return [*self._mistakes, *(mistake for stem in self._files for mistake in self._read(stem)[1])]

    def _stems(self, name: str) -> list[str]:
        """The files that may define a workload: their names without suffix begin the workload's name."""
        return [stem for stem in self._files if f"{name}_".startswith(f"{stem}_")]

    def _read_file(self, stem: str) -> tuple[list[UserWorkload], list[FileMistake]]:
        file = self._files[stem]
        workloads, mistakes = described_workloads(file, f"{WORKLOADS}.{stem}", self._run_job)
        new = [workload for workload in workloads if workload.name not in self._shipped]
        shadows = [_shadow(file, workload.name) for workload in workloads if workload.name in self._shipped]
        return new, [*mistakes, *shadows]


def workload_named(name: str, code: UserCode | None = None) -> WorkloadKind:
    """The workload of that name. Raises UsageError if there is none or its file has a mistake.

    `code`: the user's code; by default that of accelbench.toml and the environment.
    """
    if model := _model_named(name, code):
        return model
    if shipped := registry.find_class(WORKLOADS, name, Workload):  # type: ignore[type-abstract]
        return shipped
    catalogue = user_catalogue(code)
    if workload := catalogue.workload(name):
        return workload
    if mistake := catalogue.mistake(name):
        raise UsageError(mistake.text, HINT)
    if name.endswith(TRAIN_SUFFIX) and (model := _models.get(name.removesuffix(TRAIN_SUFFIX))):
        raise UsageError(f"{model.name} has no training step.", model.training_hint)
    raise UsageError(f"No workload named {name!r}.", name_hint(name, [*workload_names(), *_models]))


def _model_named(name: str, code: UserCode | None) -> UserModel | None:
    """The user's model of that name, or None. Raises UsageError if the revision `code` lacks it."""
    if code is None or code not in _revision_models:
        return _models.get(name)
    model = _revision_models[code].get(name)
    if isinstance(model, UsageError):
        raise model
    if model is None and name in _models:
        raise UsageError(f"No model named {name!r} in that revision.", "A later commit added it.")
    return model


def is_mistaken_model(name: str, code: UserCode) -> bool:
    """Whether the model's file in that code has a mistake."""
    return isinstance(_revision_models.get(code, {}).get(name), UsageError)


def name_hint(name: str, names: Sequence[str]) -> str:
    """Hint for an unknown name: the names that contain it or all of its words, else the most similar ones.

    For a misspelt name only similar ones are suggested.
    """
    words = set(name.split("_"))
    matches = (other for other in names if name in other or words.issubset(other.split("_")))
    ordered = sorted(matches, key=lambda other: not other.startswith(name))
    if not (name and ordered) or get_close_matches(name, names, n=1, cutoff=MISSPELT_CUTOFF):
        return unknown("workloads", name, list(names))
    *first, last = map(repr, ordered)
    return f"Did you mean {', '.join(first)}{' or ' if first else ''}{last}?"


def expand_patterns(names: Iterable[str], among: Sequence[str] = ()) -> tuple[str, ...]:
    """Replace patterns such as `gpt2*` by the workloads that they match. Raises UsageError.

    `among`: the workloads that patterns may match; (): all.
    """
    expanded: dict[str, None] = {}
    for name in names:
        if not PATTERN_CHARACTERS.intersection(name):
            expanded[name] = None
            continue
        choices = among or [*workload_names(), *_models]  # imports all workloads
        matches = fnmatch.filter(choices, name)
        if not matches:
            plain = "".join(letter for letter in name if letter not in PATTERN_CHARACTERS)
            raise UsageError(f"No workload matches {name!r}.", name_hint(plain, choices))
        expanded |= dict.fromkeys(matches)
    return tuple(expanded)


@contextmanager
def with_models(models: Mapping[str, UserModel]) -> Iterator[None]:
    """Make the user's models known as workloads, also to workers started inside the context."""
    _models.update(models)
    with project.with_models({name: model.spec for name, model in models.items()}):
        yield


@contextmanager
def with_models_of(code: UserCode, models: Mapping[str, UserModel | UsageError]) -> Iterator[None]:
    """Set the models of a revision's code, or the mistakes in their files, inside the context."""
    _revision_models[code] = models
    try:
        yield
    finally:
        del _revision_models[code]


def models_of(specs: Sequence[ModelSpec]) -> list[str] | None:
    """The names of these models and their steps; None if one is not described yet."""
    requested = {*map(with_kind, specs)}
    described = {
        name: dataclasses.replace(model.spec, is_quiet=False, trains=False, step="")
        for name, model in _models.items()
    }
    if not requested <= {*described.values()}:
        return None
    return [name for name, spec in described.items() if spec in requested]


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


def user_file_warnings() -> list[str]:
    """A line for each mistake in the user's files and folders."""
    return [f"warning: {mistake.text}" for mistake in user_catalogue().mistakes()]


def user_catalogue(code: UserCode | None = None) -> UserCatalogue:
    """The catalogue of the user's folders, which is read again after a file has changed."""
    code = code or user_code()
    files = [path for folder in code.workloads for path in paths.listed(folder, "*.py")]
    states = [(str(path), path.stat()) for path in files]
    return _catalogue(code, tuple((path, state.st_mtime_ns, state.st_size) for path, state in states))


@lru_cache(maxsize=3)  # the current code, and both sides of a comparison
def _catalogue(code: UserCode, _state: object) -> UserCatalogue:
    """`_state`: part of the cache key, which changes with the files."""
    folders = tuple(map(Path, code.workloads))
    missing = [relative_path(folder) for folder in folders if not os.path.isdir(folder)]
    mistakes = [FileMistake(f"{folder}: there is no such folder") for folder in missing]
    shipped = {*registry.entry_names(WORKLOADS)} if folders else set[str]()  # imports all workloads
    return UserCatalogue(_files(folders, shipped, mistakes), mistakes, UserFilesProcess(code), shipped)


def _files(folders: Sequence[Path], shipped: set[str], mistakes: list[FileMistake]) -> dict[str, Path]:
    """The importable files by name. Adds the others to `mistakes`."""
    reserved, files = {*shipped, *registry.module_names(WORKLOADS)}, dict[str, Path]()
    for folder in folders:
        for module in iter_modules([str(folder)]):
            file = folder / (f"{module.name}/__init__.py" if module.ispkg else f"{module.name}.py")
            if module.name in reserved:
                mistakes.append(_shadow(file, module.name))
            elif module.name in files:
                first = relative_path(files[module.name])
                mistakes.append(FileMistake(f"{relative_path(file)} is not used: {first} comes first"))
            elif not module.name.startswith("_"):
                files[module.name] = file
    return files


def _shadow(file: Path, name: str) -> FileMistake:
    return FileMistake(f"{relative_path(file)}: {name} is not used, since accelbench has one of that name")
