"""Every workload by name, as what a plan needs to know of it.

Those that come with accelbench are classes of this process. A user's file is never imported here, but by a
process of its own: what exits, hangs or crashes there costs only that file, and is told as its mistake.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from pkgutil import iter_modules

from benchbench import registry
from benchbench.errors import UsageError, unknown
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
from benchbench.model.case import Scalar
from benchbench.registry import WORKLOADS
from benchbench.workloads.base import Workload

WorkloadKind = type[Workload] | UserWorkload  # before parameters are chosen
SizedWorkload = Workload | UserWorkloadSize  # at given ones


@dataclass(frozen=True, slots=True)
class UserCatalogue:
    """What the user's files hold: workloads by name, and what is wrong with the rest."""

    workloads: Mapping[str, UserWorkload]
    mistakes: Sequence[FileMistake]

    def mistake(self, name: str) -> FileMistake | None:
        """Why there is no workload of that name, if a file that should define it has one."""
        named = [each for each in self.mistakes if each.stem and f"{name}_".startswith(f"{each.stem}_")]
        return max(named, key=lambda each: len(each.stem), default=None)


def workload_named(name: str, code: UserCode | None = None) -> WorkloadKind:
    """The workload of that name. Raises UsageError: there is none, or its file has a mistake.

    `code`: where the user's are; by default what accelbench.toml and the environment say.
    """
    if shipped := registry.find_class(WORKLOADS, name, Workload):  # type: ignore[type-abstract]
        return shipped
    own = user_catalogue(code)
    if name in own.workloads:
        return own.workloads[name]
    if mistake := own.mistake(name):
        raise UsageError(mistake.text, MORE)
    raise UsageError(f"No workload named {name!r}.", unknown("workloads", name, workload_names()))


def workload_at(name: str, params: Mapping[str, Scalar]) -> SizedWorkload:
    """The workload at these parameters. Raises UsageError."""
    kind = workload_named(name)
    try:
        return kind(**params)
    except UsageError as error:
        hint = error.hint or f"accelbench list workloads shows the parameters of {name} with their defaults."
        raise UsageError(f"{name}: {error}", hint) from error


def workload_names() -> list[str]:
    """Of every workload that can be measured, sorted."""
    return sorted({*registry.entry_names(WORKLOADS), *user_catalogue().workloads})


def user_file_warnings() -> list[str]:
    """A line for each mistake in the user's files and folders."""
    return [f"warning: {each.text}" for each in user_catalogue().mistakes]


def user_catalogue(code: UserCode | None = None) -> UserCatalogue:
    """Of the user's folders. Files are imported again when one has changed."""
    code = code or user_code()
    return _catalogue(code, tuple(_state(code)))


def _state(code: UserCode) -> Iterator[tuple[str, int, int]]:
    """Of each file: path, time of the last change, size."""
    for path in (path for folder in code.workloads for path in sorted(Path(folder).glob("*.py"))):
        found = path.stat()
        yield str(path), found.st_mtime_ns, found.st_size


@lru_cache(maxsize=2)  # both sides of a comparison
def _catalogue(code: UserCode, _state: object) -> UserCatalogue:
    """`_state`: whatever tells that what was read before must be read again."""
    folders = tuple(map(Path, code.workloads))
    mistakes = [
        FileMistake(f"{shown(each)}: there is no such folder") for each in folders if not each.is_dir()
    ]
    process, workloads = UserFilesProcess(code), dict[str, UserWorkload]()
    shipped = {*registry.entry_names(WORKLOADS)}
    for stem, file in _files(folders, shipped, mistakes).items():
        own, wrong = described_workloads(file, f"{WORKLOADS}.{stem}", process)
        mistakes += wrong
        for each in own:
            if each.name in shipped:
                mistakes.append(_shadow(file, each.name))
            else:
                workloads[each.name] = each
    return UserCatalogue(workloads, mistakes)


def _files(folders: Sequence[Path], shipped: set[str], mistakes: list[FileMistake]) -> dict[str, Path]:
    """Name → file, of those that can be imported; the others are added to `mistakes`."""
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
