"""Build an environment for a backend: read the request, plan the download, install, check, and write the
record.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from benchbench import paths
from benchbench.backends.base import Backend, backend_class
from benchbench.environments import interpreters
from benchbench.environments.installer import (
    SCRATCH,
    Download,
    Site,
    Tell,
    check_build,
    check_resolved,
    check_room,
    install,
    installed,
    resolve,
    running_build,
)
from benchbench.environments.interpreters import Environment, EnvironmentState
from benchbench.errors import CannotBuild, CannotWrite, UsageError
from benchbench.launch.pool import WorkerPool
from benchbench.launch.project import no_code
from benchbench.machine.environment import usable_threads
from benchbench.model.device import Target
from benchbench.model.run import Settings
from benchbench.store import disk

REQUEST = "accelbench-request.json"  # allows an interrupted build to be resumed
CHECK_S = 90.0
VERSION = re.compile(r"[0-9]+(\.[0-9]+)*")
DISTRIBUTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """Environment to build. `base`: the interpreter to create it with. `variant`: build of the framework, or
    "" for any.
    """

    name: str
    backend: str
    requirements: tuple[str, ...]
    base: str
    chosen: bool  # the user gave the requirements; False: they are the backend's
    variant: str = ""

    @property
    def torch_build(self) -> str:
        """Build of torch that pip should find, or "" for any. Other frameworks select builds by
        requirements.
        """
        torch_names = ("torch", "")  # a file or folder has no distribution name
        return (
            self.variant
            if any(_distribution(requirement) in torch_names for requirement in self.requirements)
            else ""
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlan:
    """A build request and its download."""

    request: BuildRequest
    download: Download


def build_request(
    name: str,
    requirements: Sequence[str],
    base: str = "",
    variant: str | None = None,
    running: Callable[[], str] = running_build,
) -> BuildRequest:
    """Complete a build request. Defaults come from an interrupted build of that name, else from the backend.

    `base`: absolute path of an interpreter. `variant`: by default the build of the `running` torch, if the
    requirements allow any. Raises UsageError for an invalid name, requirement or build.
    """
    backend, label = interpreters.split_name(name)
    kind = backend_class(backend)
    if variant:
        _check_variant(kind, backend, variant, requirements)
    interrupted = _interrupted_request(name)
    base = base or (interrupted.base if interrupted else "") or sys.executable
    if interrupted and interrupted.chosen and not requirements:
        return replace(interrupted, base=base, variant=variant or interrupted.variant)
    defaults = kind.builds.get(variant or "", kind.requirements)
    all_requirements = tuple(map(_requirement, requirements)) or (
        _requirements_at(name, kind, defaults, label) if label else defaults
    )
    if not any(_distribution(requirement) == "numpy" for requirement in all_requirements):
        all_requirements = (*all_requirements, "numpy")  # the worker needs it; torch does not require it
    return BuildRequest(
        name=name,
        backend=backend,
        requirements=all_requirements,
        base=base,
        chosen=bool(requirements),
        variant=variant or _default_variant(defaults, all_requirements, running),
    )


def _check_variant(kind: type[Backend], backend: str, variant: str, requirements: Sequence[str]) -> None:
    """Raise UsageError for an unknown build, or for a build together with requirements that select one."""
    if any(_distribution(requirement) == "torch" for requirement in kind.requirements):
        if variant not in kind.builds:
            check_build(variant)
        return
    if variant not in kind.builds:
        raise UsageError(f"{backend} has no build {variant!r}.", f"Builds are {', '.join(kind.builds)}.")
    if requirements:
        raise UsageError("--with says which build, so does --variant.", "Leave one of them out.")


def _default_variant(defaults: Sequence[str], requirements: Sequence[str], running: Callable[[], str]) -> str:
    """Build of the running torch, unless the requirements name a build or file or the backend pins torch."""
    pinned = any(_distribution(requirement) == "torch" and "==" in requirement for requirement in defaults)
    is_any_build = [
        not re.search("[@+]", requirement)
        for requirement in requirements
        if _distribution(requirement) == "torch"
    ]
    return running() if is_any_build and all(is_any_build) and not pinned else ""


def _interrupted_request(name: str) -> BuildRequest | None:
    with suppress(OSError, msgspec.MsgspecError, ValueError, RecursionError):
        request = msgspec.json.decode(
            (interpreters.environment_folder(name) / REQUEST).read_bytes(), type=BuildRequest
        )
        if request.name == name and interpreters.version_of(Path(request.base)):
            return request
    return None


def _requirement(text: str) -> str:
    """Check a requirement and make a path absolute, since pip runs in another folder."""
    if not text.strip() or text.strip().startswith("-"):
        hint = "Write one requirement in pip's syntax; its options are set by PIP_… variables or pip.conf."
        raise UsageError(f"{text!r} is no requirement.", hint)
    is_path = text.startswith((".", "~")) or (os.sep in text and os.path.exists(text))
    return str(paths.absolute(paths.expanded(text))) if is_path else text.strip()


def _requirements_at(name: str, kind: type[Backend], defaults: Sequence[str], label: str) -> tuple[str, ...]:
    """Requirements at the version in the label: of those that the backend pins, or of its main package."""
    first = next(
        (requirement for requirement in defaults if _distribution(requirement) in kind.distributions),
        defaults[0],
    )
    if not VERSION.fullmatch(label):
        hint = f'accelbench env create {name} --with "{_distribution(first)}==…"'
        raise UsageError(f"The label of {name!r} is not a version, so nothing says what to install.", hint)
    pinned = [requirement for requirement in defaults if "==" in requirement] or [first]
    return tuple(
        f"{requirement.partition('==')[0]}=={label}.*" if requirement in pinned else requirement
        for requirement in defaults
    )


def _distribution(requirement: str) -> str:
    match = DISTRIBUTION.match(requirement)
    return match[0] if match else ""


def build_environment(
    request: BuildRequest,
    variant: str = "",
    tell: Tell = lambda _: None,
    on_plan: Callable[[BuildPlan], None] = lambda _: None,
) -> EnvironmentState:
    """Return the environment, building or finishing it unless it is ready.

    `variant`: a requested build. `on_plan` is called with the plan before the download. Raises UsageError,
    CannotBuild, CannotWrite.
    """
    with interpreters.locked(request.name) as lock:
        if existing := existing_environment(request, variant):
            return existing
        with site(request, lock) as workspace:
            download = resolve(workspace, request.base, request.requirements, request.torch_build, tell)
            check_resolved(request.torch_build, request.requirements, download)
            on_plan(BuildPlan(request=request, download=download))
            check_room(download)
            install(workspace, request.requirements, request.torch_build, download, tell)
            finish(workspace, request, tell)
    return interpreters.find_environment(request.name)


def existing_environment(request: BuildRequest, variant: str = "") -> EnvironmentState | None:
    """Return a ready environment, else None. Raises UsageError if it was built from another request.

    `variant`: a requested build.
    """
    if request.name not in interpreters.environment_names():
        return None
    environment = interpreters.find_environment(request.name)
    if environment.health != "ready" or environment.record is None:
        return None
    request_built = _interrupted_request(request.name)
    hint = f"accelbench env rm {request.name} removes it."
    if request.chosen and request.requirements != environment.record.requirements:
        requirements = " ".join(environment.record.requirements)
        raise UsageError(f"{request.name} exists already, with {requirements}.", hint)
    if request_built and variant and request_built.variant != variant:
        raise UsageError(f"{request.name} exists already, of another build.", hint)
    if request_built and request_built.base != request.base:
        raise UsageError(f"{request.name} exists already, created from {request_built.base}.", hint)
    return environment


@contextmanager
def site(request: BuildRequest, lock: int) -> Iterator[Site]:
    """Create an empty folder to build in. Raises CannotWrite.

    Remains of an interrupted build are removed, since pip treats a partly installed package as installed. Its
    downloads stay in pip's cache.
    """
    folder = interpreters.environment_folder(request.name)
    try:
        interpreters.remove_environment(request.name)
        (folder / SCRATCH).mkdir(parents=True)
    except OSError as error:
        raise CannotWrite(
            f"{error.filename}: {error.strerror}", "Make it writable, or free space."
        ) from error
    try:
        disk.save(folder / REQUEST, msgspec.json.encode(request))
        yield Site(folder, lock)
    finally:
        shutil.rmtree(folder / SCRATCH, ignore_errors=True)


def finish(workspace: Site, request: BuildRequest, tell: Tell) -> Environment:
    """Import the framework in a worker, and write the record. Raises CannotBuild, CannotWrite."""
    tell(f"importing {request.backend}")
    version = interpreters.version_of(Path(workspace.python)) or (0, 0, 0)
    packages, main = installed(workspace)
    shutil.rmtree(workspace.folder / SCRATCH, ignore_errors=True)
    record = Environment(
        name=request.name,
        backend=request.backend,
        requirements=request.requirements,
        python=".".join(map(str, version)),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        main=main,
        packages=packages,
        broken=fault_of(Target(name=request.name, backend=request.backend, python=workspace.python)),
        bytes=interpreters.bytes_in(workspace.folder),
    )
    text = msgspec.json.format(msgspec.json.encode(record), indent=1)
    disk.save(workspace.folder / interpreters.RECORD, text + b"\n")
    return record


def fault_of(target: Target) -> str:
    """Reason why a worker cannot import the target's framework or list its devices, or an empty text."""
    settings = Settings(threads=usable_threads(), timeout_s=CHECK_S)
    with WorkerPool([target], settings, sys.executable, no_code()) as pool:
        (probe,) = pool.probe()
    return "" if probe.status == "ready" else probe.reason


def check_usable(environment: EnvironmentState) -> None:
    """Raise CannotBuild if the framework of a new environment cannot be imported."""
    if environment.health != "ready":
        name, backend = environment.name, environment.backend
        message = f"{name} is built, but {backend} cannot be used there: {environment.reason}"
        raise CannotBuild(message, "Other versions may do: --with; accelbench env rm removes it.")


def check_health(environment: EnvironmentState) -> EnvironmentState:
    """Import the framework in a worker and return the environment with the resulting health."""
    if not environment.usable:
        return environment
    reason = fault_of(Target(name=environment.name, backend=environment.backend, python=environment.python))
    return replace(environment, health="broken" if reason else "ready", reason=reason)
