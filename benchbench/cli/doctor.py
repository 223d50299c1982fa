"""`accelbench doctor`: a function per mode."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from benchbench.cli.app import app, signals
from benchbench.cli.options import (
    BackendOption,
    DataFormat,
    DeviceOption,
    DtypeOption,
    FormatOption,
    Names,
    PythonOption,
    ThreadsOption,
    chosen_targets,
    dtype_named,
    split,
)
from benchbench.cli.screen import print_json, screen, width
from benchbench.errors import NothingToMeasure, UsageError

if TYPE_CHECKING:
    from benchbench.fleet import Fleet
    from benchbench.model import Record, RunInfo


@app.command()
def doctor(
    strict: Annotated[bool, typer.Option("--strict", help="Exit 4 when there is a problem.")] = False,
    ceilings: Annotated[
        bool,
        typer.Option("--ceilings", help="Measure and keep the best GEMM and copy rates."),
    ] = False,
    backend: BackendOption = None,
    python: PythonOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    threads: ThreadsOption = None,
    format: FormatOption = DataFormat.TERMINAL,
) -> None:
    """What on this machine spoils measurements, what it does to them, and what to do about it.

    Examples: accelbench doctor --strict --format json; accelbench doctor --ceilings -b torch,jax
    """
    narrowed = [name for name, value in _named(backend, python, device, dtype, threads) if value]
    if narrowed and not ceilings:
        raise UsageError(f"{narrowed[0]} is for what is measured.", "Add --ceilings.")
    if not ceilings:
        raise typer.Exit(4 if _examined(format) and strict else 0)
    _ceilings(backend, python, device, dtype, threads, format)


def _named(
    backend: Names, python: Names, device: Names, dtype: Names, threads: int | None
) -> list[tuple[str, object]]:
    return [
        ("--backend", backend),
        ("--python", python),
        ("--device", device),
        ("--dtype", dtype),
        ("--threads", threads),
    ]


def _examined(format: DataFormat) -> bool:
    """Print what the checks found; whether there is a problem."""
    from dataclasses import asdict

    from benchbench import describe, nvml
    from benchbench.checks.base import Level
    from benchbench.doctor import examine, this_host

    gpus = nvml.connect()
    try:
        found = examine(this_host(gpus))
    finally:
        if not isinstance(gpus, str):
            gpus.close()
    if format is DataFormat.JSON:
        print_json({"findings": [asdict(finding) for finding in found]})
    else:
        typer.echo(describe.findings(found, width()), nl=False)
    return any(finding.status is Level.PROBLEM for finding in found)


def _ceilings(
    backend: Names, python: Names, device: Names, dtype: Names, threads: int | None, format: DataFormat
) -> None:
    """Measure, keep and print the ceilings of the devices chosen."""
    from benchbench import ceilings, diagnosis, store
    from benchbench.environment import usable_threads
    from benchbench.fleet import Fleet
    from benchbench.model import Settings
    from benchbench.plan import Selection
    from benchbench.rounds import Request, prepare

    request = Request(
        entries=ceilings.entries([dtype_named(name) for name in split(dtype)] or ceilings.DTYPES),
        selection=Selection(devices=split(device)),
        policy=ceilings.POLICY,
        settings=Settings(threads=threads or usable_threads()),
        seed=None,
        command=tuple(sys.argv[1:]),
    )
    with signals(), Fleet(chosen_targets(backend, python), request.settings, sys.executable) as fleet:
        typer.echo("looking for backends and devices", err=True)
        info = prepare(fleet, request)
        records = _climb(fleet, info)
    found = ceilings.best(info, records)
    if not found:
        raise NothingToMeasure("No case gave a rate.", "The lines above tell why.")
    kept = ceilings.merged(ceilings.stored(info.machine), found)
    store.save(ceilings.place(info.machine), ceilings.encoded(info.machine, kept))
    notes = ceilings.remarks(found, records)
    if format is DataFormat.JSON:
        print_json({"ceilings": diagnosis.ceilings_fields(found), "notes": notes})
    else:
        typer.echo(diagnosis.ceilings_text(found, notes, width()), nl=False)
    typer.echo(f"kept in {ceilings.place(info.machine)}", err=True)


def _climb(fleet: Fleet, info: RunInfo) -> list[Record]:
    """Every product at the smallest size, then larger ones while that gains something."""
    from dataclasses import replace

    from benchbench import ceilings, describe

    typer.echo(describe.left_out(info.left_out), err=True, nl=False)
    records = _measured(fleet, info)
    for _ in ceilings.CPU_SIDES[1:]:
        if cases := ceilings.larger(records):
            records += _measured(fleet, replace(info, plan=tuple(cases)))
    return records


def _measured(fleet: Fleet, info: RunInfo) -> list[Record]:
    """The records of a run that is not kept, shown as they come."""
    from benchbench import rounds

    found = []
    with screen(info) as shown:
        for record in rounds.measure(fleet, info, shown.announce):
            found.append(record)
            shown.show(record)
    return found
