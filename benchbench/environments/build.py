"""An environment of its own for a backend: what was asked for, a folder to build in, a check, the record."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import msgspec

from benchbench import paths
from benchbench.backends.base import Backend
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
from benchbench.environments.interpreters import Environment, Found
from benchbench.errors import CannotBuild, CannotWrite, UsageError
from benchbench.launch.pool import WorkerPool
from benchbench.launch.project import no_code
from benchbench.machine.environment import usable_threads
from benchbench.model.device import Target
from benchbench.model.run import Settings
from benchbench.registry import load_class
from benchbench.store import disk

REQUEST = "accelbench-request.json"  # by which an attempt that was cut short is resumed
CHECK_S = 90.0
VERSION = re.compile(r"[0-9]+(\.[0-9]+)*")
DISTRIBUTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """What is to be built: `base` is the interpreter it is made from, `variant` which build, "" any."""

    name: str
    backend: str
    requirements: tuple[str, ...]
    base: str
    chosen: bool  # the requirements were given, not the backend's own
    variant: str = ""

    @property
    def torch_build(self) -> str:
        """That pip is to look for, "" any; other frameworks' builds are requirements."""
        may_be_torch = ("torch", "")  # a file has no name here
        return self.variant if any(_distribution(each) in may_be_torch for each in self.requirements) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlan:
    """What was asked for, what it takes to download and to keep, and the folder of environments."""

    request: BuildRequest
    download: Download
    where: Path


def build_request(
    name: str,
    requirements: Sequence[str],
    base: str = "",
    variant: str | None = None,
    running: Callable[[], str] = running_build,
) -> BuildRequest:
    """What is to be built; what is not said is as in an attempt that was cut short, else the backend's own.

    `base` is the absolute path of an interpreter. `variant`: which build, by default that of the `running`
    torch where one of whatever build would do. Raises UsageError for what cannot be a name, a requirement
    or a build.
    """
    backend, label = interpreters.split_name(name)
    kind = load_class("benchbench.backends", backend, Backend)  # type: ignore[type-abstract]
    if variant:
        _check_variant(kind, backend, variant, requirements)
    before = _attempted(name)
    base = base or (before.base if before else "") or sys.executable
    if before and before.chosen and not requirements:
        return replace(before, base=base, variant=variant or before.variant)
    own = kind.builds.get(variant or "", kind.requirements)
    wanted = tuple(map(_requirement, requirements)) or (_of_version(name, kind, own, label) if label else own)
    if not any(_distribution(each) == "numpy" for each in wanted):
        wanted = (*wanted, "numpy")  # the worker's own; torch comes without
    return BuildRequest(
        name=name,
        backend=backend,
        requirements=wanted,
        base=base,
        chosen=bool(requirements),
        variant=variant or _usual_variant(own, wanted, running),
    )


def _check_variant(kind: type[Backend], backend: str, variant: str, given: Sequence[str]) -> None:
    """Raises UsageError for a build that there is none of, and for one of what was named otherwise."""
    if any(_distribution(each) == "torch" for each in kind.requirements):
        if variant not in kind.builds:
            check_build(variant)
        return
    if variant not in kind.builds:
        raise UsageError(f"{backend} has no build {variant!r}.", f"Builds are {', '.join(kind.builds)}.")
    if given:
        raise UsageError("--with says which build, so does --variant.", "Leave one of them out.")


def _usual_variant(own: Sequence[str], wanted: Sequence[str], running: Callable[[], str]) -> str:
    """That of the running torch, unless a build or a file is named, or the backend pins its torch."""
    pinned = any(_distribution(each) == "torch" and "==" in each for each in own)
    free = [not re.search("[@+]", each) for each in wanted if _distribution(each) == "torch"]
    return running() if free and all(free) and not pinned else ""


def plan_build(place: Site, request: BuildRequest, tell: Tell) -> BuildPlan:
    """Ask pip what the request takes. Raises CannotBuild, also where there is no such build of torch."""
    download = resolve(place, request.base, request.requirements, request.torch_build, tell)
    check_resolved(request.torch_build, request.requirements, download)
    return BuildPlan(request=request, download=download, where=interpreters.environments_folder())


def _attempted(name: str) -> BuildRequest | None:
    with suppress(OSError, msgspec.MsgspecError, ValueError, RecursionError):
        found = msgspec.json.decode(
            (interpreters.environment_folder(name) / REQUEST).read_bytes(), type=BuildRequest
        )
        if found.name == name and interpreters.version_of(Path(found.base)):
            return found
    return None


def _requirement(text: str) -> str:
    """As pip reads it; a path is made absolute, since pip runs elsewhere."""
    if not text.strip() or text.strip().startswith("-"):
        hint = "One requirement each, as pip takes it; its options are set by PIP_… variables or pip.conf."
        raise UsageError(f"{text!r} is no requirement.", hint)
    is_path = text.startswith((".", "~")) or (os.sep in text and os.path.exists(text))
    return str(paths.absolute(paths.expanded(text))) if is_path else text.strip()


def _of_version(name: str, kind: type[Backend], own: Sequence[str], label: str) -> tuple[str, ...]:
    """The backend's requirements at the label's version: those it pins, which go together, else its own."""
    first = next((each for each in own if _distribution(each) in kind.distributions), own[0])
    if not VERSION.fullmatch(label):
        hint = f'accelbench env create {name} --with "{_distribution(first)}==…"'
        raise UsageError(f"The label of {name!r} is not a version, so nothing says what to install.", hint)
    pinned = [each for each in own if "==" in each] or [first]
    return tuple(f"{each.partition('==')[0]}=={label}.*" if each in pinned else each for each in own)


def _distribution(requirement: str) -> str:
    found = DISTRIBUTION.match(requirement)
    return found[0] if found else ""


def build_environment(
    request: BuildRequest,
    variant: str = "",
    tell: Tell = lambda _: None,
    on_plan: Callable[[BuildPlan], None] = lambda _: None,
) -> Found:
    """The environment, built or finished now unless it is ready; `on_plan` gets what it takes, before.

    `variant`: the build, if one was asked for. Raises UsageError, CannotBuild, CannotWrite.
    """
    with interpreters.locked(request.name) as lock:
        if found := existing_environment(request, variant):
            return found
        with site(request, lock) as place:
            plan = plan_build(place, request, tell)
            on_plan(plan)
            check_room(plan.download)
            install(place, request.requirements, request.torch_build, plan.download, tell)
            finish(place, request, tell)
    return interpreters.find_environment(request.name)


@contextmanager
def asking_folder() -> Iterator[Path]:
    """A folder in which pip is only asked, about one environment or several. Raises CannotWrite."""
    root = interpreters.environments_folder()
    with disk.writing(root):
        root.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".dry-run-", dir=root))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def planned_environment(
    request: BuildRequest, folder: Path, variant: str = "", tell: Tell = lambda _: None
) -> BuildPlan | Found:
    """What building it would download, or the environment that is ready.

    `folder`: to ask pip in; its virtual environment is made once for each base. Raises UsageError,
    CannotBuild, CannotWrite.
    """
    with interpreters.locked(request.name) as lock:
        if found := existing_environment(request, variant):
            return found
        place = Site(folder / sha256(request.base.encode()).hexdigest()[:16], lock, kept=False)
        with disk.writing(folder):
            (place.folder / SCRATCH).mkdir(parents=True, exist_ok=True)
        plan = plan_build(place, request, tell)
        check_room(plan.download)
        return plan


def existing_environment(request: BuildRequest, variant: str = "") -> Found | None:
    """The environment, where it is there and ready. Raises UsageError if it was built from something else.

    `variant`: the build, if one was asked for.
    """
    if request.name not in interpreters.environment_names():
        return None
    found = interpreters.find_environment(request.name)
    if found.health != "ready" or found.record is None:
        return None
    before = _attempted(request.name)
    hint = f"accelbench env rm {request.name} removes it."
    if request.chosen and request.requirements != found.record.requirements:
        has = " ".join(found.record.requirements)
        raise UsageError(f"{request.name} exists already, with {has}.", hint)
    if before and variant and before.variant != variant:
        raise UsageError(f"{request.name} exists already, of another build.", hint)
    if before and before.base != request.base:
        raise UsageError(f"{request.name} exists already, made from {before.base}.", hint)
    return found


@contextmanager
def site(request: BuildRequest, lock: int) -> Iterator[Site]:
    """An empty folder to build in. Raises CannotWrite.

    What an attempt that was cut short left is no ground to build on, since pip takes a package that is half
    there for installed; what it downloaded is in pip's cache.
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
        yield Site(folder, lock, kept=True)
    finally:
        shutil.rmtree(folder / SCRATCH, ignore_errors=True)


def finish(place: Site, request: BuildRequest, tell: Tell) -> Environment:
    """Import the framework in a worker, and write the record. Raises CannotBuild, CannotWrite."""
    tell(f"importing {request.backend}")
    version = interpreters.version_of(Path(place.python)) or (0, 0, 0)
    packages, main = installed(place)
    shutil.rmtree(place.folder / SCRATCH, ignore_errors=True)
    record = Environment(
        name=request.name,
        backend=request.backend,
        requirements=request.requirements,
        python=".".join(map(str, version)),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        main=main,
        packages=packages,
        broken=fault_of(Target(name=request.name, backend=request.backend, python=place.python)),
        bytes=interpreters.bytes_in(place.folder),
    )
    text = msgspec.json.format(msgspec.json.encode(record), indent=1)
    disk.save(place.folder / interpreters.RECORD, text + b"\n")
    return record


def fault_of(target: Target) -> str:
    """Why a worker cannot import the target's framework or list its devices; empty if it can."""
    settings = Settings(threads=usable_threads(), timeout_s=CHECK_S)
    with WorkerPool([target], settings, sys.executable, no_code()) as pool:
        (probe,) = pool.probe()
    return "" if probe.status == "ready" else probe.reason


def check_usable(found: Found) -> None:
    """Raises CannotBuild for what was built, and whose framework does not import."""
    if found.health != "ready":
        what = f"{found.name} is built, but {found.backend} cannot be used there: {found.reason}"
        raise CannotBuild(what, "Other versions may do: --with; accelbench env rm removes it.")


def check_health(found: Found) -> Found:
    """The environment with the health that a worker finds."""
    if not found.usable:
        return found
    reason = fault_of(Target(name=found.name, backend=found.backend, python=found.python))
    return replace(found, health="broken" if reason else "ready", reason=reason)
