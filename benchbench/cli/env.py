"""`accelbench env`: environments of their own for backends, so that versions can be measured side by side."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from benchbench.cli.app import INSPECT, app, signals
from benchbench.cli.formats import TERMINAL, FormatOption, print_document
from benchbench.cli.options import Names, option
from benchbench.cli.screen import tell
from benchbench.errors import CannotBuild, UsageError, unknown

if TYPE_CHECKING:
    from benchbench.environments.build import BuildRequest
    from benchbench.environments.interpreters import Found
    from benchbench.environments.wheels import Download

env = typer.Typer(
    no_args_is_help=True, help="Environments of their own for backends: other versions, side by side."
)
app.add_typer(env, name="env", rich_help_panel=INSPECT)


@env.command()
def create(
    name: Annotated[str, typer.Argument(help="A backend, or a backend and a label: torch_xla, torch@2.12.")],
    with_: Annotated[
        Names, option("--with", text="A requirement, as pip takes it. [default: the backend's pins]")
    ] = None,
    base: Annotated[
        str | None, option("--base", text="The interpreter it is made from. [default: this one]")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would download.")] = False,
    format: FormatOption = TERMINAL,
) -> None:
    """Build an environment; one that is there stays as it is, one that was cut short is finished.

    Examples: accelbench env create torch_xla; accelbench env create torch@2.12 --with "torch==2.12.1"
    """
    from benchbench.environments import build, interpreters
    from benchbench.environments.targets import interpreter

    request = build.build_request(name, with_ or (), interpreter(base) if base else "")
    again = f"accelbench env create {name} goes on from here"
    with signals("nothing was to be kept" if dry_run else again), interpreters.locked(name) as lock:
        found = build.standing(request) or _built(request, lock, dry_run, format)
    if found is None:
        return
    _print([found], format)
    if found.health != "ready":
        what = f"{name} is built, but {found.backend} cannot be used there: {found.reason}"
        raise CannotBuild(what, "Other versions may do: --with; accelbench env rm removes it.")


def _built(request: BuildRequest, lock: int, dry_run: bool, format: str) -> Found | None:
    """None after a dry run."""
    from benchbench.environments import build, installer, interpreters

    with build.site(request, lock, dry_run=dry_run) as site, _progress() as tell:
        download = installer.resolve(site, request.base, request.requirements, tell)
        _print_download(request, download, dry_run, format)
        installer.check_room(download)
        if dry_run:
            return None
        installer.install(site, request.requirements, download, tell)
        build.finish(site, request, tell)
    return interpreters.find_environment(request.name)


def _print_download(request: BuildRequest, download: Download, dry_run: bool, format: str) -> None:
    """A dry run's is its result; else it is told before the download begins."""
    from benchbench.documents.environments import download_document, takes
    from benchbench.environments import interpreters

    where = interpreters.environments_folder()
    if dry_run:
        print_document(download_document(request, download, where), format)
    else:
        tell(*takes(request, download, where))


@env.command("list")
def list_(
    check: Annotated[
        bool, typer.Option("--check", help="Import each framework, instead of starting the interpreter.")
    ] = False,
    format: FormatOption = TERMINAL,
) -> None:
    """Every environment with its versions, its size and its health.

    Examples: accelbench env list; accelbench env list --check --format json
    """
    from benchbench.environments import interpreters

    found = [interpreters.find_environment(name) for name in interpreters.environment_names()]
    if check:
        with signals("nothing was to be kept"), _progress() as tell:
            found = _checked(found, tell)
    _print(found, format)


def _checked(found: Sequence[Found], tell: Callable[[str], None]) -> list[Found]:
    from benchbench.environments import build

    checked = []
    for each in found:
        tell(f"importing {each.backend} in {each.name}")
        checked.append(build.check_health(each))
    return checked


@env.command()
def rm(names: Annotated[list[str], typer.Argument(help="Environments, built to the end or not.")]) -> None:
    """Remove environments.

    Example: accelbench env rm torch@2.12
    """
    from benchbench.environments import interpreters
    from benchbench.format import size

    there = interpreters.environment_names()
    for name in names:
        if name not in there:
            raise UsageError(f"No environment named {name!r}.", unknown("environments", name, there))
    for name in dict.fromkeys(names):
        with interpreters.locked(name):
            freed = interpreters.bytes_in(interpreters.environment_folder(name))
            interpreters.remove_environment(name)
        tell(f"removed {name}, {size(freed)}")


def _print(found: Sequence[Found], format: str) -> None:
    from benchbench.documents.environments import environments_document

    print_document(environments_document(found), format)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """One line that changes on a terminal, else a line each."""
    if not sys.stderr.isatty():
        yield tell
        return
    from rich.console import Console
    from rich.text import Text

    from benchbench.format import visible

    with Console(stderr=True).status("") as status:
        yield lambda text: status.update(Text(visible(text)))
