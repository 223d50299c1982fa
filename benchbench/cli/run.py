"""`accelbench run`: a suite measured and stored."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchbench.cli.app import app, signals
from benchbench.cli.formats import prices, print_document, write_run
from benchbench.cli.measuring import measured
from benchbench.cli.options import (
    AllocatorOption,
    BackendOption,
    BudgetOption,
    CacheOption,
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
    TagOption,
    ThreadsOption,
    TimeoutOption,
    WorkloadOption,
    chosen_targets,
)
from benchbench.cli.request import requested
from benchbench.model.options import Allocator, Isolation

if TYPE_CHECKING:
    from benchbench.model.run import RunInfo


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
    cache: CacheOption = None,
    quick: QuickOption = False,
    rigorous: RigorousOption = False,
    rounds: RoundsOption = None,
    budget: BudgetOption = None,
    timeout: TimeoutOption = 300.0,
    threads: ThreadsOption = None,
    allocator: AllocatorOption = Allocator.STEADY,
    isolation: IsolationOption = Isolation.FORK,
    seed: SeedOption = None,
    tag: TagOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be measured.")] = False,
    allow_failed: Annotated[
        bool, typer.Option("--allow-failed", help="Exit 0 though a case failed.")
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Then profile each case, in a pass of its own.")
    ] = False,
    results: ResultsOption = Path("results"),
    format: FormatOption = DataFormat.TERMINAL,
) -> None:
    """Measure a suite: every case on every backend found, verified, then timed.

    Examples: accelbench run --suite conv; accelbench run -b torch,jax -w gemm -p m=512,1024 --quick
    """
    from benchbench.documents import lists
    from benchbench.launch.pool import WorkerPool
    from benchbench.running.rounds import prepare
    from benchbench.store import runs

    wanted = chosen_targets(backend, python)
    request = requested(
        suite=suite,
        workload=workload,
        device=device,
        dtype=dtype,
        mode=mode,
        param=param,
        cache=cache,
        quick=quick,
        rigorous=rigorous,
        budget=budget,
        rounds=rounds,
        timeout=timeout,
        threads=threads,
        allocator=allocator,
        isolation=isolation,
        seed=seed,
        tag=tag,
    )
    known = prices() if format is DataFormat.JSON else None
    with signals(), WorkerPool(wanted, request.settings, sys.executable) as pool:
        typer.echo("looking for backends and devices", err=True)
        info = prepare(pool, request)
        if dry_run:
            _print_plan(info, format)
            return
        records = measured(pool, info, results, profile=profile)
    if format is DataFormat.JSON:
        path = runs.find(results, info.id)
        write_run(runs.read(path), "json", None, path, known)
    raise typer.Exit(4 if lists.failing(records) and not allow_failed else 0)


def _print_plan(info: RunInfo, format: DataFormat) -> None:
    from benchbench.documents.lists import plan_document

    print_document(plan_document(info), format)
