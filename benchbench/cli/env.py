"""`accelbench env`: separate environments for backends, to measure several versions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchbench.cli.app import INSPECT, app
from benchbench.cli.formats import TERMINAL, FormatOption, print_document
from benchbench.cli.options import Names, option
from benchbench.cli.program import signals
from benchbench.cli.screen import print_message

if TYPE_CHECKING:
    from benchbench.environments.interpreters import EnvironmentState

env = typer.Typer(
    no_args_is_help=True, help="Manage separate environments for backends, to measure several versions."
)
app.add_typer(env, name="env", rich_help_panel=INSPECT)


@env.command()
def create(
    name: Annotated[str, typer.Argument(help="Backend, optionally with a label: torch_xla, torch@2.12.")],
    with_: Annotated[
        Names, option("--with", text="Requirement in pip's syntax. [default: the backend's pins]")
    ] = None,
    base: Annotated[
        str | None, option("--base", text="Interpreter to build it with. [default: this one]")
    ] = None,
    variant: Annotated[
        str,
        option(
            "--variant",
            text="Build: cpu, cuda; torch: cu128, rocm6.4, xpu; jax: tpu. [default: pip's choice]",
        ),
    ] = "",
    format: FormatOption = TERMINAL,
) -> None:
    """Build an environment, or finish an interrupted build. A finished one is not changed.

    Examples: accelbench env create torch_xla; accelbench env create torch@2.12 --with "torch==2.12.1"
    """
    from benchbench import api
    from benchbench.documents.lists import build_lines
    from benchbench.environments.build import check_usable

    request: dict[str, Any] = {"requirements": with_ or (), "base": base or "", "variant": variant}
    resume = f"accelbench env create {name} continues from here"
    with signals(lambda: resume), _progress() as show:
        environment = api.create_environment(
            name, **request, on_plan=lambda plan: print_message(*build_lines(plan)), on_stage=show
        )
    _print([environment], format)
    check_usable(environment)


@env.command("list")
def list_(
    check: Annotated[
        bool, typer.Option("--check", help="Import each framework instead of only starting the interpreter.")
    ] = False,
    format: FormatOption = TERMINAL,
) -> None:
    """List environments with versions, size and health.

    Examples: accelbench env list; accelbench env list --check --format json
    """
    from benchbench import api

    with signals(), _progress() as show:
        environments = api.list_environments(check=check, on_stage=show)
    _print(environments, format)


@env.command()
def rm(
    names: Annotated[
        list[str],
        typer.Argument(help="Environments to remove."),
    ],
) -> None:
    """Remove environments.

    Example: accelbench env rm torch@2.12
    """
    from benchbench import api
    from benchbench.format import size

    for name, freed in api.remove_environments(names).items():
        print_message(f"removed {name}, {size(freed)}")


def _print(environments: Sequence[EnvironmentState], format: str) -> None:
    from benchbench.documents.lists import environments_document

    print_document(environments_document(environments), format)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows progress: a status line on a terminal, otherwise a line per call."""
    if not sys.stderr.isatty():
        yield print_message
        return
    from rich.console import Console
    from rich.text import Text

    from benchbench.format import visible

    with Console(stderr=True).status("") as status:
        yield lambda text: status.update(Text(visible(text)))
