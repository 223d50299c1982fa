"""Names to targets: the interpreter of each is given by hand, an environment's, or the running one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from benchbench import paths, registry
from benchbench.backends.base import Backend
from benchbench.environments import interpreters
from benchbench.errors import UsageError
from benchbench.model.device import Target
from benchbench.model.options import parse_interpreters

VARIABLE = "ACCELBENCH_PYTHON"  # NAME=PATH, several separated as in PATH
OLDEST = (3, 11)  # Python that runs the worker


def interpreter(text: str) -> str:
    """The absolute path of an interpreter, its own or its environment's folder given. Raises UsageError."""
    path = paths.absolute(paths.expanded(text))
    if os.path.isdir(path):
        path = interpreters.interpreter_in(path)
    version = interpreters.version_of(path)
    if version is None:
        raise UsageError(
            f"{path} does not start as a Python.", "Name an interpreter, or a virtual environment."
        )
    if version < OLDEST:
        found, least = (".".join(map(str, each)) for each in (version, OLDEST))
        raise UsageError(f"{path} is Python {found}.", f"accelbench needs {least} or later.")
    return str(path)


def read_interpreters(texts: Sequence[str]) -> dict[str, str]:
    """`["torch@old=/path"]` → name → interpreter; of two with one name the later. Raises UsageError."""
    return check_interpreters(parse_interpreters(texts))


def check_interpreters(paths: Mapping[str, str]) -> dict[str, str]:
    """Name → interpreter: the names can be targets, the paths start a Python. Raises UsageError."""
    for name in paths:
        interpreters.split_name(name)
    return {name: interpreter(path) for name, path in paths.items()}


def from_variable() -> list[str]:
    """The texts in ACCELBENCH_PYTHON."""
    return [text for text in os.environ.get(VARIABLE, "").split(os.pathsep) if text.strip()]


def choose_targets(
    wanted: Sequence[str], paths: Mapping[str, str], running: str, *, labelled: bool = False
) -> list[Target]:
    """`targets` with the interpreters at `paths`, name → path, and before them those of the environment.

    Raises UsageError, also for an interpreter in `paths` whose name is not measured.
    """
    selected = targets(wanted, absolute_interpreters(paths), running, labelled=labelled)
    for name in paths.keys() - {target.name for target in selected}:
        raise UsageError(f"--python names {name!r}, which is not selected.", f"Add it: -b {name}")
    return selected


def absolute_interpreters(paths: Mapping[str, str]) -> dict[str, str]:
    """Name → interpreter: those at `paths`, and before them those of the environment. Raises UsageError."""
    return read_interpreters(from_variable()) | check_interpreters(paths)


def targets(
    wanted: Sequence[str], given: Mapping[str, str], running: str, *, labelled: bool = False
) -> list[Target]:
    """Targets by name, each once. Its interpreter is the one in `given`, else that of the environment of
    its name, else, without a label, `running`.

    None wanted: every backend of real time, and with `labelled` every other name that has an interpreter.
    Raises UsageError.
    """
    chosen = dict.fromkeys(wanted) or dict.fromkeys(
        name for name in registry.entry_names("benchbench.backends") if not is_virtual(name)
    )
    if labelled and not wanted:
        chosen |= dict.fromkeys(sorted({*interpreters.environment_names(), *given}))
    return [_target(name, given, running) for name in chosen]


def is_virtual(backend: str) -> bool:
    """Whether a backend simulates its time, which no neighbour disturbs."""
    return backend_class(backend).virtual


def backend_class(backend: str) -> type[Backend]:
    """The class of that name."""
    return registry.load_class("benchbench.backends", backend, Backend)  # type: ignore[type-abstract]


def _target(name: str, given: Mapping[str, str], running: str) -> Target:
    backend, label = interpreters.split_name(name)
    if name in given:
        remedy = f"install {backend} for the interpreter given as {name}"
        return Target(name=name, backend=backend, python=given[name], remedy=remedy)
    if name in interpreters.environment_names():
        return _built(interpreters.find_environment(name))
    if label:
        there = sorted({*interpreters.environment_names(), *given})
        ways = f"accelbench env create {name} builds one, --python {name}=PATH names one."
        raise UsageError(f"No interpreter for {name!r}.", f"{ways} There are: {', '.join(there) or 'none'}.")
    return Target(name=name, backend=backend, python=running)


def _built(found: interpreters.Found) -> Target:
    again = f"accelbench env create {found.name}"
    return Target(
        name=found.name,
        backend=found.backend,
        python=found.python,
        fault="" if found.usable else f"its environment cannot be used: {found.reason}",
        remedy=f"accelbench env rm {found.name}, then {again}" if found.health == "ready" else again,
    )
