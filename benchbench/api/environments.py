"""Functions for environments, as in `accelbench env`."""

from __future__ import annotations

from collections.abc import Callable

from benchbench.environments import build, interpreters
from benchbench.environments.build import BuildPlan
from benchbench.environments.interpreters import EnvironmentState, interpreter
from benchbench.errors import UsageError, unknown
from benchbench.model.options import Names, several

Stage = Callable[[str], None]  # receives a description of the current stage


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

    A ready environment is returned unchanged, an interrupted build is finished. `requirements`: in pip's
    syntax, by default the backend's; `base`: the interpreter to create it with; `variant`: the build, such as
    `cpu` or `cuda`, for torch also `cu128`. `on_plan` receives the plan before the download. If the framework
    cannot be imported, the environment is broken.

    Raises UsageError, CannotBuild, CannotWrite.
    """
    request = _request(name, requirements, base, variant)
    return build.build_environment(request, variant, on_stage or _ignore, on_plan or _ignore)


def list_environments(*, check: bool = False, on_stage: Stage | None = None) -> list[EnvironmentState]:
    """List environments with their versions, size and health; `check`: import each framework."""
    environments = [interpreters.find_environment(name) for name in interpreters.environment_names()]
    return (
        [_checked(environment, on_stage or _ignore) for environment in environments]
        if check
        else environments
    )


def remove_environments(names: Names) -> dict[str, int]:
    """Remove environments, complete or not; returns name → bytes freed. Raises UsageError, CannotWrite."""
    existing = interpreters.environment_names()
    for name in several(names):
        if name not in existing:
            raise UsageError(f"No environment named {name!r}.", unknown("environments", name, existing))
    return {name: _removed(name) for name in dict.fromkeys(several(names))}


def _request(name: str, requirements: Names, base: str, variant: str) -> build.BuildRequest:
    return build.build_request(
        name, several(requirements), interpreter(base) if base else "", variant or None
    )


def _checked(environment: EnvironmentState, tell: Stage) -> EnvironmentState:
    tell(f"importing {environment.backend} in {environment.name}")
    return build.check_health(environment)


def _removed(name: str) -> int:
    with interpreters.locked(name):
        freed = interpreters.bytes_in(interpreters.environment_folder(name))
        interpreters.remove_environment(name)
    return freed


def _ignore(_event: object) -> None:
    """Default of the callbacks."""
