"""Choose targets by name, and the interpreter of each."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from benchbench import paths, registry
from benchbench.backends.base import backend_class
from benchbench.environments import interpreters
from benchbench.errors import UsageError
from benchbench.model.device import Target
from benchbench.model.options import parse_interpreters

VARIABLE = "ACCELBENCH_PYTHON"  # NAME=PATH, separated like the folders of PATH
OLDEST = (3, 11)  # Python version that can run a worker


def interpreter(text: str) -> str:
    """Absolute path of an interpreter or of a virtual environment's interpreter. Raises UsageError."""
    path = paths.absolute(paths.expanded(text))
    if os.path.isdir(path):
        path = interpreters.interpreter_in(path)
    version = interpreters.version_of(path)
    if version is None:
        raise UsageError(
            f"{path} does not start as a Python.", "Name an interpreter, or a virtual environment."
        )
    if version < OLDEST:
        actual, required = (".".join(map(str, numbers)) for numbers in (version, OLDEST))
        raise UsageError(f"{path} is Python {actual}.", f"accelbench needs {required} or later.")
    return str(path)


def read_interpreters(texts: Sequence[str]) -> dict[str, str]:
    """Parse `["torch@old=/path"]` into name → interpreter; later entries win. Raises UsageError."""
    return check_interpreters(parse_interpreters(texts))


def check_interpreters(paths: Mapping[str, str]) -> dict[str, str]:
    """Check names and interpreters, and make their paths absolute. Raises UsageError."""
    for name in paths:
        interpreters.split_name(name)
    return {name: interpreter(path) for name, path in paths.items()}


def from_variable() -> list[str]:
    """Entries of ACCELBENCH_PYTHON."""
    return [text for text in os.environ.get(VARIABLE, "").split(os.pathsep) if text.strip()]


def choose_targets(
    names: Sequence[str], paths: Mapping[str, str], running: str, *, labelled: bool = False
) -> list[Target]:
    """Choose targets by name. `paths`: name → interpreter; they override those of ACCELBENCH_PYTHON.

    Raises UsageError, also for an interpreter in `paths` whose name is not selected.
    """
    selected = targets(names, absolute_interpreters(paths), running, labelled=labelled)
    for name in paths.keys() - {target.name for target in selected}:
        raise UsageError(f"--python names {name!r}, which is not selected.", f"Add it: -b {name}")
    return selected


def absolute_interpreters(paths: Mapping[str, str]) -> dict[str, str]:
    """Interpreters by name: those in `paths`, then those of ACCELBENCH_PYTHON. Raises UsageError."""
    return read_interpreters(from_variable()) | check_interpreters(paths)


def targets(
    names: Sequence[str], interpreters_by_name: Mapping[str, str], running: str, *, labelled: bool = False
) -> list[Target]:
    """Create targets by name, without duplicates. Raises UsageError.

    A target's interpreter is the one in `interpreters_by_name`, or that of its environment. A target without
    a label may use `running`. Without names, every backend with real time is a target; `labelled` adds every
    environment.
    """
    target_names = dict.fromkeys(names) or dict.fromkeys(
        name for name in registry.entry_names("benchbench.backends") if not is_virtual(name)
    )
    if labelled and not names:
        target_names |= dict.fromkeys(sorted({*interpreters.environment_names(), *interpreters_by_name}))
    return [_target(name, interpreters_by_name, running) for name in target_names]


def is_virtual(backend: str) -> bool:
    """True if a backend simulates its time, which other programs cannot disturb."""
    return backend_class(backend).virtual


def _target(name: str, interpreters_by_name: Mapping[str, str], running: str) -> Target:
    backend, label = interpreters.split_name(name)
    if name in interpreters_by_name:
        remedy = f"install {backend} for the interpreter given as {name}"
        return Target(name=name, backend=backend, python=interpreters_by_name[name], remedy=remedy)
    if name in interpreters.environment_names():
        return _environment_target(interpreters.find_environment(name))
    if label:
        existing = sorted({*interpreters.environment_names(), *interpreters_by_name})
        hint = f"accelbench env create {name} builds one, --python {name}=PATH names one."
        raise UsageError(
            f"No interpreter for {name!r}.", f"{hint} There are: {', '.join(existing) or 'none'}."
        )
    return Target(name=name, backend=backend, python=running)


def _environment_target(environment: interpreters.EnvironmentState) -> Target:
    create = f"accelbench env create {environment.name}"
    return Target(
        name=environment.name,
        backend=environment.backend,
        python=environment.python,
        fault="" if environment.usable else f"its environment cannot be used: {environment.reason}",
        remedy=f"accelbench env rm {environment.name}, then {create}"
        if environment.health == "ready"
        else create,
    )
