"""`accelbench.toml`, nearest upwards: where it is, and where it says that the user's own code and data are.

Its other tables are read by `plan/config.py`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import msgspec

from benchbench import paths, registry
from benchbench.errors import AccelbenchWarning, UnreadableInput, UsageError, page
from benchbench.format import visible
from benchbench.machine.environment import cache_folder
from benchbench.model import own
from benchbench.model.own import ModelSpec
from benchbench.reading import read_toml
from benchbench.workloads._image_sets import DATA_PATHS, data_paths

T = TypeVar("T")

NAME = "accelbench.toml"
KEYS = f"{page('checking')} has an example with every key."


class CodeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The `[code]` table: folders, relative to the file's own."""

    workloads: list[str] = []
    sources: list[str] = []


class DataConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The `[data]` table: files and folders of images, relative to the file's own."""

    paths: list[str] = []


@dataclass(frozen=True, slots=True)
class UserCode:
    """Where workers find the user's own code: folders of workloads, and the entries of PYTHONPATH.

    `sources`: folders that the workloads import from, under every interpreter; those of PYTHONPATH may hold
    packages of the running one. `models`: the user's models by name, as `model.own.as_text` has them.
    `variables`: names of the shell's variables that the code reads, which its workers get besides the usual.
    """

    workloads: tuple[str, ...]
    python_path: tuple[str, ...]
    sources: tuple[str, ...] = ()
    models: str = ""
    variables: tuple[str, ...] = ()


_models: dict[str, ModelSpec] = {}  # that the command under way measures, by name


@contextmanager
def with_models(models: Mapping[str, ModelSpec]) -> Iterator[None]:
    """Workers that start meanwhile know these models by name."""
    before = dict(_models)
    _models.update(models)
    try:
        yield
    finally:
        _models.clear()
        _models.update(before)


def user_code() -> UserCode:
    """What accelbench.toml and the environment say, and the models that the command under way measures.

    ACCELBENCH_WORKLOADS takes the place of the file's.

    Raises UsageError.
    """
    path = find_config(Path())
    table, root = (_table(path, "code", CodeConfig), path.parent) if path else (CodeConfig(), Path())
    named = registry.WORKLOAD_PATH in os.environ
    return UserCode(
        workloads=tuple(registry.extra_folders() if named else _absolute(root, table.workloads)),
        python_path=_python_path(),
        sources=tuple(_absolute(root, table.sources)),
        models=own.as_text(_models) if _models else "",
    )


def no_code() -> UserCode:
    """Where workers find packages, and none of the user's own code: what measures none of it needs none."""
    return UserCode(workloads=(), python_path=_python_path())


def _python_path() -> tuple[str, ...]:
    return tuple(each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each)


def warn_of_first_execution() -> None:
    """Warn that code of the nearest accelbench.toml's folder is about to be executed, if it never was.

    Once for a user, a folder and what it names: a repository that was just cloned is code of others. What
    the user names in the environment is told by nobody.
    """
    path = find_config(Path())
    if path is None:
        return
    table = _table(path, "code", CodeConfig)
    folders = [*([] if registry.WORKLOAD_PATH in os.environ else table.workloads), *table.sources]
    if folders:
        _warn_once(path, tuple(folders))


@cache
def _warn_once(path: Path, folders: tuple[str, ...]) -> None:
    content = "\0".join((str(paths.resolved(path)), *folders))
    mark = cache_folder("known-code") / sha256(content.encode(errors="replace")).hexdigest()[:24]
    if os.path.lexists(mark):
        return
    with suppress(OSError):
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    names = ", ".join(map(visible, folders))
    text = f"code of this folder is executed, for the first time: what {visible(str(path))} names, {names}"
    warnings.warn(AccelbenchWarning(text), stacklevel=3)


def user_data() -> tuple[str, ...]:
    """Where the user's sets of images are, absolute; ACCELBENCH_DATA takes the place of the file's.

    Raises UsageError.
    """
    if DATA_PATHS in os.environ:
        return tuple(map(str, data_paths()))
    path = find_config(Path())
    return tuple(_absolute(path.parent, _table(path, "data", DataConfig).paths)) if path else ()


def find_config(start: Path) -> Path | None:
    """The file in `start` or the nearest folder above it."""
    here = paths.absolute(start)
    places = (folder / NAME for folder in [here, *here.parents])
    return next((path for path in places if os.path.isfile(path)), None)


def _table(path: Path, name: str, kind: type[T]) -> T:
    try:
        return msgspec.convert(read_toml(path).get(name, {}), kind)
    except UnreadableInput as error:
        raise UsageError(f"Cannot read {error}", KEYS) from error
    except ValueError as error:  # of text, of TOML and of what is not a key
        raise UsageError(f"{path}: {error}", KEYS) from error


def _absolute(root: Path, folders: list[str]) -> list[str]:
    return [str(paths.resolved(root / each)) for each in folders]
