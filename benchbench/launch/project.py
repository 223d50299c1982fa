"""The folders of the user's code and data, from the nearest `accelbench.toml` and the environment.

The file's other tables are read by `plan/config.py`.
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
from benchbench.model import user_model
from benchbench.model.user_model import ModelSpec
from benchbench.reading import read_toml
from benchbench.workloads._image_sets import DATA_PATHS, data_paths

T = TypeVar("T")

NAME = "accelbench.toml"
KEYS = f"{page('checking')} has an example with every key."


class CodeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The `[code]` table: folders, relative to the file's folder."""

    workloads: list[str] = []
    sources: list[str] = []


class DataConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The `[data]` table: files and folders of images, relative to the file's folder."""

    paths: list[str] = []


@dataclass(frozen=True, slots=True)
class UserCode:
    """The user's code for workers: folders of workloads, and the entries of PYTHONPATH.

    `sources`: import folders for every interpreter; PYTHONPATH is for this interpreter only. `models`: the
    user's models, encoded by `user_model.as_text`. `variables`: names of further environment variables that
    workers get.
    """

    workloads: tuple[str, ...]
    python_path: tuple[str, ...]
    sources: tuple[str, ...] = ()
    models: str = ""
    variables: tuple[str, ...] = ()


_models: dict[str, ModelSpec] = {}  # of the current command, by name


@contextmanager
def with_models(models: Mapping[str, ModelSpec]) -> Iterator[None]:
    """Pass these models to workers started inside the context."""
    outer_models = dict(_models)
    _models.update(models)
    try:
        yield
    finally:
        _models.clear()
        _models.update(outer_models)


def user_code() -> UserCode:
    """The code named by accelbench.toml and the environment, and the models of the current command.

    ACCELBENCH_WORKLOADS replaces the file's workloads. Raises UsageError.
    """
    path = find_config(Path())
    table, root = (_table(path, "code", CodeConfig), path.parent) if path else (CodeConfig(), Path())
    is_overridden = registry.WORKLOAD_PATH in os.environ
    return UserCode(
        workloads=tuple(registry.extra_folders() if is_overridden else _absolute(root, table.workloads)),
        python_path=_python_path(),
        sources=tuple(_absolute(root, table.sources)),
        models=user_model.as_text(_models) if _models else "",
    )


def no_code() -> UserCode:
    """PYTHONPATH only, without any of the user's code."""
    return UserCode(workloads=(), python_path=_python_path())


def _python_path() -> tuple[str, ...]:
    return tuple(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))


def warn_of_first_execution() -> None:
    """Warn before code named by the nearest accelbench.toml is executed for the first time.

    The warning is shown once per user, file and named folders, since a cloned repository contains code of
    others. Code that the environment names causes no warning.
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
    text = f"code of this project is executed for the first time: {names}, from {visible(str(path))}"
    warnings.warn(AccelbenchWarning(text), stacklevel=3)


def user_data() -> tuple[str, ...]:
    """Absolute paths of the user's image sets. ACCELBENCH_DATA replaces the file's paths.

    Raises UsageError.
    """
    if DATA_PATHS in os.environ:
        return tuple(map(str, data_paths()))
    path = find_config(Path())
    return tuple(_absolute(path.parent, _table(path, "data", DataConfig).paths)) if path else ()


def find_config(start: Path) -> Path | None:
    """The file in `start` or the nearest folder above it."""
    here = paths.absolute(start)
    candidates = (folder / NAME for folder in [here, *here.parents])
    return next((path for path in candidates if os.path.isfile(path)), None)


def _table(path: Path, name: str, kind: type[T]) -> T:
    try:
        return msgspec.convert(read_toml(path).get(name, {}), kind)
    except UnreadableInput as error:
        raise UsageError(f"Cannot read {error}", KEYS) from error
    except ValueError as error:  # wrong encoding, TOML, key or type
        raise UsageError(f"{path}: {error}", KEYS) from error


def _absolute(root: Path, folders: list[str]) -> list[str]:
    return [str(paths.resolved(root / folder)) for folder in folders]
