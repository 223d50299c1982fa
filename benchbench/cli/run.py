"""`accelbench run`: a suite measured and stored."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from benchbench.cli.app import app, signals
from benchbench.cli.options import (
    AllocatorOption,
    BackendOption,
    BudgetOption,
    DataFormat,
    DeviceOption,
    DtypeOption,
    FormatOption,
    IsolationOption,
    ModeOption,
    ParamOption,
    PythonOption,
    QuickOption,
    ResultsOption,
    RigorousOption,
    RoundsOption,
    SeedOption,
    SuiteOption,
    ThreadsOption,
    TimeoutOption,
    WorkloadOption,
    chosen_targets,
    dtype_named,
    seconds_in,
    split,
)
from benchbench.cli.report import ReportFormat, write_report
from benchbench.cli.screen import print_json, screen, width
from benchbench.errors import NothingToMeasure, UsageError
from benchbench.model import Allocator, Isolation

if TYPE_CHECKING:
    from benchbench.fleet import Fleet
    from benchbench.model import Policy, Record, RunInfo
    from benchbench.suite import Suite


@app.command()
def run(
    suite: SuiteOption = None,
    workload: WorkloadOption = None,
    backend: BackendOption = None,
    python: PythonOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    mode: ModeOption = None,
    param: ParamOption = None,
    quick: QuickOption = False,
    rigorous: RigorousOption = False,
    rounds: RoundsOption = None,
    budget: BudgetOption = None,
    timeout: TimeoutOption = 300.0,
    threads: ThreadsOption = None,
    allocator: AllocatorOption = Allocator.STEADY,
    isolation: IsolationOption = Isolation.FORK,
    seed: SeedOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be measured.")] = False,
    allow_failed: Annotated[
        bool, typer.Option("--allow-failed", help="Exit 0 though a case failed.")
    ] = False,
    results: ResultsOption = Path("results"),
    format: FormatOption = DataFormat.TERMINAL,
) -> None:
    """Measure a suite: every case on every backend found, verified, then timed.

    Examples: accelbench run --suite conv; accelbench run -b torch,jax -w gemm -p m=512,1024 --quick
    """
    from benchbench import describe, store
    from benchbench import suite as suites
    from benchbench.environment import usable_threads
    from benchbench.fleet import Fleet
    from benchbench.model import Settings
    from benchbench.plan import Selection, parse_params, select
    from benchbench.rounds import Request, prepare

    selection = Selection(
        workloads=split(workload),
        devices=split(device),
        dtypes=tuple(dtype_named(name) for name in split(dtype)),
        modes=split(mode),
        params=parse_params(param or []),
    )
    chosen = [suites.load(name) for name in split(suite) or ("quick",)]
    wanted = chosen_targets(backend, python)
    request = Request(
        entries=tuple(select(chosen, selection)),
        selection=selection,
        policy=_policy(chosen, {"--quick": quick, "--rigorous": rigorous, "--budget": budget}, rounds),
        settings=Settings(
            threads=threads or usable_threads(),
            allocator=allocator,
            isolation=isolation,
            timeout_s=timeout,
        ),
        seed=seed,
        command=tuple(sys.argv[1:]),
    )
    with signals(), Fleet(wanted, request.settings, sys.executable) as fleet:
        typer.echo("looking for backends and devices", err=True)
        info = prepare(fleet, request)
        if dry_run:
            _print_plan(info, format)
            return
        records = _measure(fleet, info, results)
    if format is DataFormat.JSON:
        write_report(store.read(store.find(results, info.id)), ReportFormat.JSON, None, results)
    raise typer.Exit(4 if describe.failing(records) and not allow_failed else 0)


def _measure(fleet: Fleet, info: RunInfo, results: Path) -> list[Record]:
    """Each record is on disk before the next case starts, and shown."""
    from benchbench import describe, rounds, store

    typer.echo(describe.left_out(info.left_out), err=True, nl=False)
    if not info.plan:
        raise NothingToMeasure("No case of the selection can run here.", "accelbench devices tells why.")
    records: list[Record] = []
    begin = monotonic()
    with store.create(results, info) as writer:
        try:
            with screen(info) as shown:
                for record in rounds.measure(fleet, info, shown.announce):
                    writer.append(record)
                    records.append(record)
                    shown.show(record)
        finally:
            typer.echo(describe.summary(records, info, monotonic() - begin), err=True, nl=False)
            typer.echo(f"time: {describe.time_split(records, fleet.stages_s)}", err=True)
            typer.echo(f"next: accelbench report {info.id}", err=True)
    return records


def _print_plan(info: RunInfo, format: DataFormat) -> None:
    from benchbench import describe

    if format is DataFormat.JSON:
        print_json(describe.plan_fields(info))
    else:
        typer.echo(describe.plan(info, width()), nl=False)


def _policy(suites: Sequence[Suite], presets: Mapping[str, bool | str | None], rounds: int | None) -> Policy:
    """The preset asked for, else the first suite's; rounds that are asked for are those of every case."""
    from dataclasses import replace

    from benchbench.measure import POLICIES, within

    asked = [name for name, wanted in presets.items() if wanted]
    if len(asked) > 1:
        raise UsageError(f"{asked[0]} and {asked[1]} exclude each other.", "Give one of them.")
    if budget := presets["--budget"]:
        if rounds:
            raise UsageError("--rounds and --budget exclude each other.", "Give one of them.")
        return within(seconds_in(str(budget)))
    policy = POLICIES[asked[0].removeprefix("--") if asked else suites[0].policy]
    return replace(policy, rounds=rounds, continue_above=None) if rounds else policy
