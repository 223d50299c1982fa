"""The functions of environments: what `accelbench env` does."""

from __future__ import annotations

from collections.abc import Callable

from benchbench.environments import build, interpreters
from benchbench.environments.build import BuildPlan
from benchbench.environments.interpreters import EnvironmentState
from benchbench.environments.targets import interpreter
from benchbench.errors import UsageError, unknown
from benchbench.model.options import Names, several

Stage = Callable[[str], None]  # a text of what is under way


def create_environment(
    name: str,
    *,
    requirements: Names = (),
    base: str = "",
    variant: str = "",
    on_plan: Callable[[BuildPlan], None] | None = None,
    on_stage: Stage | None = None,
) -> EnvironmentState:
    """Build an environment for a backend, `torch_xla` or `torch@2.12`, as `accelbench env create` does.

    One that is ready stays as it is, one that was cut short is finished. `requirements`: as pip takes them,
    else the backend's own; `base`: the interpreter it is made from; `variant`: which build, `cpu`, `cuda`, of
    torch also `cu128`. `on_plan` gets what it takes before the download begins. A framework that cannot be
    imported there makes it broken.

    Raises UsageError, CannotBuild, CannotWrite.
    """
    request = _request(name, requirements, base, variant)
    return build.build_environment(request, variant, on_stage or _untold, on_plan or _untold)


def plan_environment(
    name: str, *, requirements: Names = (), base: str = "", variant: str = "", on_stage: Stage | None = None
) -> BuildPlan | EnvironmentState:
    """What `create_environment` would download, or the environment that is ready; nothing is kept.

    Raises UsageError, CannotBuild, CannotWrite.
    """
    request = _request(name, requirements, base, variant)
    with build.dry_run_folder() as folder:
        return build.planned_environment(request, folder, variant, on_stage or _untold)


def list_environments(*, check: bool = False, on_stage: Stage | None = None) -> list[EnvironmentState]:
    """Every environment with its versions, its size and its health; `check`: by importing each framework."""
    found = [interpreters.find_environment(name) for name in interpreters.environment_names()]
    return [_checked(each, on_stage or _untold) for each in found] if check else found


def remove_environments(names: Names) -> dict[str, int]:
    """Remove environments, built to the end or not; name → bytes freed. Raises UsageError, CannotWrite."""
    there = interpreters.environment_names()
    for name in several(names):
        if name not in there:
            raise UsageError(f"No environment named {name!r}.", unknown("environments", name, there))
    return {name: _removed(name) for name in dict.fromkeys(several(names))}


def _request(name: str, requirements: Names, base: str, variant: str) -> build.BuildRequest:
    return build.build_request(
        name, several(requirements), interpreter(base) if base else "", variant or None
    )


def _checked(found: EnvironmentState, tell: Stage) -> EnvironmentState:
    tell(f"importing {found.backend} in {found.name}")
    return build.check_health(found)


def _removed(name: str) -> int:
    with interpreters.locked(name):
        freed = interpreters.bytes_in(interpreters.environment_folder(name))
        interpreters.remove_environment(name)
    return freed


def _untold(_what: object) -> None:
    """For those who need not know what is under way."""
