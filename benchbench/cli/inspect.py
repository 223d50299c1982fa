"""`list`, `devices`, `env` and `doctor`: what can be measured, and where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchbench.cli.app import EXPLAIN, INSPECT, app
from benchbench.cli.formats import TERMINAL, FormatOption, print_document
from benchbench.cli.options import Names, ResultsOption, measure_options, option
from benchbench.cli.program import signals
from benchbench.cli.screen import plain_text, print_message, status_line
from benchbench.errors import UsageError
from benchbench.model.options import MeasureOptions, flag_of, parse_tags, split_names

if TYPE_CHECKING:
    from rich.status import Status

    from benchbench.environments.interpreters import EnvironmentState


class Listing(StrEnum):
    """Subjects of `list`."""

    WORKLOADS = "workloads"
    BACKENDS = "backends"
    SUITES = "suites"
    METRICS = "metrics"
    DATA = "data"
    RUNS = "runs"


@app.command("list", rich_help_panel=INSPECT)
def list_(
    subject: Annotated[Listing, typer.Argument(help="Subject of the list.")],
    tag: Annotated[Names, option("--tag", text="Runs with this tag: NAME=VALUE.")] = None,
    suite: Annotated[Names, option("--suite", text="Runs of these suites.")] = None,
    since: Annotated[str, option("--since", text="Runs since that day: 2026-01-31.")] = "",
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Only this many of the newest runs.")
    ] = None,
    backend: Annotated[
        Names,
        option("-b", "--backend", text="Workloads that one of these backends runs; the others with reasons."),
    ] = None,
    results: ResultsOption = Path("results"),
    format: FormatOption = TERMINAL,
) -> None:
    """List workloads, backends, suites, metrics, data sets or stored runs.

    Examples: accelbench list workloads -b openvino; accelbench list runs --limit 10 --tag branch=main
    """
    from benchbench.documents.run_list import RunChoice, runs_document
    from benchbench.store.selectors import RunFilter

    run_filter = RunFilter(tags=parse_tags(tag or ()), since=since)
    choice = RunChoice(run_filter=run_filter, suites=split_names(suite), limit=limit)
    if backend and subject is not Listing.WORKLOADS:
        raise UsageError("-b chooses workloads.", "accelbench list workloads -b openvino")
    if subject is Listing.RUNS:
        print_document(runs_document(results, choice), format)
        return
    if choice != RunChoice():
        hint = f"accelbench list {subject} lists all."
        raise UsageError("--tag, --suite, --since and --limit choose runs.", hint)
    from benchbench.documents.lists import list_document
    from benchbench.launch import catalogue

    print_document(list_document(subject, split_names(backend)), format)
    if subject is Listing.WORKLOADS:
        print_message(*catalogue.user_file_warnings())


@app.command(rich_help_panel=INSPECT)
@measure_options(only=("backends", "pythons"))
def devices(*, options: MeasureOptions, format: FormatOption = TERMINAL) -> None:
    """List backends and environments with version and devices, or the reason why one cannot be used.

    Examples: accelbench devices; accelbench devices -b torch --format json
    """
    from benchbench import api
    from benchbench.cli.live import Lines
    from benchbench.documents.lists import devices_document

    with signals():
        probes = api.devices(options=options, observer=Lines())
    print_document(devices_document(probes), format)


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
    with signals(lambda: resume), status_line() as status:
        environment = api.create_environment(
            name, **request, on_plan=lambda plan: print_message(*build_lines(plan)), on_stage=_stages(status)
        )
    _print([environment], format)
    check_usable(environment)


@env.command("list")
def list_environments(
    check: Annotated[
        bool, typer.Option("--check", help="Import each framework instead of only starting the interpreter.")
    ] = False,
    format: FormatOption = TERMINAL,
) -> None:
    """List environments with versions, size and health.

    Examples: accelbench env list; accelbench env list --check --format json
    """
    from benchbench import api

    with signals(), status_line() as status:
        environments = api.list_environments(check=check, on_stage=_stages(status))
    _print(environments, format)


@env.command()
def rm(names: Annotated[list[str], typer.Argument(help="Environments to remove.")]) -> None:
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


def _stages(status: Status | None) -> Callable[[str], None]:
    """Function that shows a stage: in the status line, otherwise on a line of its own."""
    return (lambda text: status.update(plain_text(text))) if status else print_message


@app.command(rich_help_panel=EXPLAIN)
@measure_options(only=("backends", "pythons", "devices", "dtypes", "threads", "wait_s"))
def doctor(
    *,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 4 if a problem is found.")] = False,
    ceilings: Annotated[
        bool, typer.Option("--ceilings", help="Measure and store the best GEMM and copy rates.")
    ] = False,
    options: MeasureOptions,
    format: FormatOption = TERMINAL,
) -> None:
    """Find causes of unreliable measurements on this machine, with remedies.

    Examples: accelbench doctor --strict --format json; accelbench doctor --ceilings -b torch
    """
    if strict and ceilings:
        raise UsageError("--strict and --ceilings exclude each other.", "Give one of them.")
    if options.changed_fields and not ceilings:
        field = min(options.changed_fields)
        raise UsageError(f"{flag_of(field)} does not go without --ceilings.", "Add --ceilings.")
    with signals():
        if ceilings:
            _show_ceilings(options, format)
        else:
            raise typer.Exit(4 if _finds_problem(format) and strict else 0)


def _show_ceilings(options: MeasureOptions, format: str) -> None:
    from benchbench import api
    from benchbench.cli.live import Lines
    from benchbench.documents.doctor import ceilings_document

    result = api.measure_ceilings(options=options, observer=Lines(summary=False))
    print_document(ceilings_document(result.found, result.notes), format)
    print_message(f"kept in {result.path}")


def _finds_problem(format: str) -> bool:
    from benchbench import api
    from benchbench.diagnosis.checks import Level
    from benchbench.documents.doctor import findings_document

    findings = api.doctor()
    print_document(findings_document(findings), format)
    return any(finding.status is Level.PROBLEM for finding in findings)
