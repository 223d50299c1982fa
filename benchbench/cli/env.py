"""`accelbench env`: environments of their own for backends, so that versions can be measured side by side."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchbench.cli.app import INSPECT, app
from benchbench.cli.formats import TERMINAL, FormatOption, print_document
from benchbench.cli.options import Names, option
from benchbench.cli.program import UNKEPT, signals
from benchbench.cli.screen import tell

if TYPE_CHECKING:
    from benchbench.environments.interpreters import EnvironmentState

env = typer.Typer(
    no_args_is_help=True, help="Manage separate environments for backends, to measure several versions."
)
app.add_typer(env, name="env", rich_help_panel=INSPECT)


@env.command()
def create(
    name: Annotated[str, typer.Argument(help="A backend, or a backend and a label: torch_xla, torch@2.12.")],
    with_: Annotated[
        Names, option("--with", text="A requirement, as pip takes it. [default: the backend's pins]")
    ] = None,
    base: Annotated[
        str | None, option("--base", text="The interpreter to build it with. [default: this one]")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what it would download.")] = False,
    variant: Annotated[
        str,
        option(
            "--variant",
            text="The build: cpu, cuda; torch: cu128, rocm6.4, xpu; jax: tpu. [default: the usual]",
        ),
    ] = "",
    format: FormatOption = TERMINAL,
) -> None:
    """Build an environment, or finish an interrupted one. A ready one is not changed.

    Examples: accelbench env create torch_xla; accelbench env create torch@2.12 --with "torch==2.12.1"
    """
    from benchbench import api
    from benchbench.documents.lists import build_lines, download_document
    from benchbench.environments.build import check_usable
    from benchbench.environments.interpreters import EnvironmentState

    asked: dict[str, Any] = {"requirements": with_ or (), "base": base or "", "variant": variant}
    again = f"accelbench env create {name} continues from here"
    with signals(lambda: UNKEPT if dry_run else again), _progress() as show:
        if dry_run:
            made = api.plan_environment(name, **asked, on_stage=show)
        else:
            made = api.create_environment(
                name, **asked, on_plan=lambda plan: tell(*build_lines(plan)), on_stage=show
            )
    if isinstance(made, EnvironmentState):
        _print([made], format)
        check_usable(made)
    else:
        print_document(download_document(made), format)


@env.command("list")
def list_(
    check: Annotated[
        bool, typer.Option("--check", help="Import each framework, not only start the interpreter.")
    ] = False,
    format: FormatOption = TERMINAL,
) -> None:
    """List every environment with its versions, size and health.

    Examples: accelbench env list; accelbench env list --check --format json
    """
    from benchbench import api

    with signals(), _progress() as show:
        found = api.list_environments(check=check, on_stage=show)
    _print(found, format)


@env.command()
def rm(
    names: Annotated[
        list[str],
        typer.Argument(help="Environments, complete or not."),
    ],
) -> None:
    """Remove environments.

    Example: accelbench env rm torch@2.12
    """
    from benchbench import api
    from benchbench.format import size

    for name, freed in api.remove_environments(names).items():
        tell(f"removed {name}, {size(freed)}")


def _print(found: Sequence[EnvironmentState], format: str) -> None:
    from benchbench.documents.lists import environments_document

    print_document(environments_document(found), format)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show progress: one changing line on a terminal, else a line each."""
    if not sys.stderr.isatty():
        yield tell
        return
    from rich.console import Console
    from rich.text import Text

    from benchbench.format import visible

    with Console(stderr=True).status("") as status:
        yield lambda text: status.update(Text(visible(text)))
