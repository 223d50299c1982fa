"""`accelbench run`: a suite measured and stored."""

from __future__ import annotations

import sys
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from benchbench.cli.app import app, signals
from benchbench.cli.formats import write_run
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
    split,
)
from benchbench.cli.profile import save_profiles
from benchbench.cli.screen import print_json, screen, width
from benchbench.errors import NothingToMeasure, UsageError
from benchbench.model import Allocator, Isolation

if TYPE_CHECKING:
    from benchbench.fleet import Fleet
    from benchbench.model import Record, RunInfo


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
    timeout: TimeoutOption = 300.0,
    threads: ThreadsOption = None,
    allocator: AllocatorOption = Allocator.STEADY,
    isolation: IsolationOption = Isolation.FORK,
    seed: SeedOption = None,
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
    from benchbench import api, describe, store
    from benchbench.environment import usable_threads
    from benchbench.fleet import Fleet
    from benchbench.model import Settings
    from benchbench.plan import Selection, parse_params
    from benchbench.rounds import prepare

    wanted = chosen_targets(backend, python)
    request = api.request(
        split(suite) or ("quick",),
        Selection(
            workloads=split(workload),
            devices=split(device),
            dtypes=tuple(api.dtype_named(name) for name in split(dtype)),
            modes=split(mode),
            params=parse_params(param or []),
        ),
        Settings(
            threads=threads or usable_threads(), allocator=allocator, isolation=isolation, timeout_s=timeout
        ),
        preset=_preset(quick, rigorous),
        rounds=rounds,
        seed=seed,
        command=tuple(sys.argv[1:]),
    )
    with signals(), Fleet(wanted, request.settings, sys.executable) as fleet:
        typer.echo("looking for backends and devices", err=True)
        info = prepare(fleet, request)
        if dry_run:
            _print_plan(info, format)
            return
        records = _measure(fleet, info, results, profile)
    if format is DataFormat.JSON:
        path = store.find(results, info.id)
        write_run(store.read(path), "json", None, path)
    raise typer.Exit(4 if describe.failing(records) and not allow_failed else 0)


def _measure(fleet: Fleet, info: RunInfo, results: Path, profile: bool) -> list[Record]:
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
                if profile:
                    save_profiles(fleet, records, results / store.RUNS / info.id, shown)
        finally:
            typer.echo(describe.summary(records, info, monotonic() - begin), err=True, nl=False)
            typer.echo(f"time: {describe.time_split(records, fleet.stages_s)}", err=True)
            typer.echo(f"next: accelbench {'profile' if profile else 'report'} {info.id}", err=True)
    return records


def _print_plan(info: RunInfo, format: DataFormat) -> None:
    from benchbench import describe

    if format is DataFormat.JSON:
        print_json(describe.plan_fields(info))
    else:
        typer.echo(describe.plan(info, width()), nl=False)


def _preset(quick: bool, rigorous: bool) -> str | None:
    if quick and rigorous:
        raise UsageError("--quick and --rigorous exclude each other.", "Give one of them.")
    return "quick" if quick else "rigorous" if rigorous else None
