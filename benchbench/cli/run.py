"""`accelbench run`: a suite measured and stored."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchbench.cli.app import app, signals
from benchbench.cli.measuring import measured
from benchbench.cli.options import (
    AllocatorOption,
    BackendOption,
    DataFormat,
    DeviceOption,
    DtypeOption,
    FormatOption,
    IsolationOption,
    ModeOption,
    ParamOption,
    QuickOption,
    ResultsOption,
    RigorousOption,
    RoundsOption,
    SeedOption,
    SuiteOption,
    ThreadsOption,
    TimeoutOption,
    WorkloadOption,
    dtype_named,
    split,
)
from benchbench.cli.report import ReportFormat, write_report
from benchbench.cli.screen import print_json, width
from benchbench.errors import UsageError
from benchbench.model import Allocator, Isolation

if TYPE_CHECKING:
    from benchbench.model import Policy, RunInfo
    from benchbench.suite import Suite


@app.command()
def run(
    suite: SuiteOption = None,
    workload: WorkloadOption = None,
    backend: BackendOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    mode: ModeOption = None,
    param: ParamOption = None,
    quick: QuickOption = False,
    rigorous: RigorousOption = False,
    rounds: RoundsOption = None,
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
    from benchbench.plan import Selection, parse_params, select, targets
    from benchbench.rounds import Request, prepare

    selection = Selection(
        workloads=split(workload),
        devices=split(device),
        dtypes=tuple(dtype_named(name) for name in split(dtype)),
        modes=split(mode),
        params=parse_params(param or []),
    )
    chosen = [suites.load(name) for name in split(suite) or ("quick",)]
    request = Request(
        entries=tuple(select(chosen, selection)),
        selection=selection,
        policy=_policy(chosen, quick, rigorous, rounds),
        settings=Settings(
            threads=threads or usable_threads(),
            allocator=allocator,
            isolation=isolation,
            timeout_s=timeout,
        ),
        seed=seed,
        command=tuple(sys.argv[1:]),
    )
    wanted = targets(split(backend), sys.executable)
    with signals(), Fleet(wanted, request.settings, sys.executable) as fleet:
        typer.echo("looking for backends and devices", err=True)
        info = prepare(fleet, request)
        if dry_run:
            _print_plan(info, format)
            return
        records = measured(fleet, info, results)
    if format is DataFormat.JSON:
        write_report(store.read(store.find(results, info.id)), ReportFormat.JSON, None, results)
    raise typer.Exit(4 if describe.failing(records) and not allow_failed else 0)


def _print_plan(info: RunInfo, format: DataFormat) -> None:
    from benchbench import describe

    if format is DataFormat.JSON:
        print_json(describe.plan_fields(info))
    else:
        typer.echo(describe.plan(info, width()), nl=False)


def _policy(suites: Sequence[Suite], quick: bool, rigorous: bool, rounds: int | None) -> Policy:
    from dataclasses import replace

    from benchbench.measure import POLICIES

    if quick and rigorous:
        raise UsageError("--quick and --rigorous exclude each other.", "Give one of them.")
    asked = "quick" if quick else "rigorous" if rigorous else suites[0].policy
    policy = POLICIES[asked]
    return replace(policy, rounds=rounds) if rounds else policy
