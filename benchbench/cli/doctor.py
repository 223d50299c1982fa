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
    from collections.abc import Collection, Mapping

    from benchbench.fleet import Fleet
    from benchbench.model import Record, RunInfo


@app.command()
def doctor(
    strict: Annotated[bool, typer.Option("--strict", help="Exit 4 when there is a problem.")] = False,
    ceilings: Annotated[
        bool,
        typer.Option("--ceilings", help="Measure and keep the best GEMM and copy rates."),
    ] = False,
    selftest: Annotated[
        bool, typer.Option("--selftest", help="Measure work of known length; exit 4 when a result is off.")
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
    modes = {"--strict": strict, "--ceilings": ceilings, "--selftest": selftest}
    narrowed = {
        "--backend": backend,
        "--python": python,
        "--device": device,
        "--dtype": dtype,
        "--threads": threads,
    }
    mode = _mode(modes, {name for name, value in narrowed.items() if value})
    if mode == "--ceilings":
        _ceilings(backend, python, device, dtype, threads, format)
    elif mode == "--selftest":
        raise typer.Exit(0 if _selftested(backend, python, threads, format) else 4)
    else:
        raise typer.Exit(4 if _examined(format) and strict else 0)


TAKES = {  # mode → what narrows it
    "--ceilings": {"--backend", "--python", "--device", "--dtype", "--threads"},
    "--selftest": {"--backend", "--python", "--threads"},
}


def _mode(modes: Mapping[str, object], narrowed: Collection[str]) -> str:
    """The one mode asked for, empty if none is. Raises UsageError."""
    asked = [name for name, wanted in modes.items() if wanted]
    if len(asked) > 1:
        raise UsageError(f"{asked[0]} and {asked[1]} exclude each other.", "Give one of them.")
    mode = asked[0] if asked else ""
    for name in narrowed:
        if name not in TAKES.get(mode, ()):
            takers = [taker for taker, taken in TAKES.items() if name in taken]
            raise UsageError(
                f"{name} does not go with {mode or 'doctor alone'}.", f"It is for {', '.join(takers)}."
            )
    return mode


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


def _selftested(backend: Names, python: Names, threads: int | None, format: DataFormat) -> bool:
    """Print what the pipeline makes of work of known length; whether all of it is right."""
    from dataclasses import asdict

    from benchbench import diagnosis, selftest
    from benchbench.environment import usable_threads
    from benchbench.fleet import Fleet
    from benchbench.model import Settings

    wanted = chosen_targets(backend or ["torch"], python) if backend or python or _has_gpu() else []
    settings = Settings(threads=threads or usable_threads())
    with signals(), Fleet(wanted, settings, sys.executable) as fleet:
        typer.echo("spinning on the host", err=True)
        found = selftest.results("host", None, selftest.HOST, fleet.ask_plain)
        if wanted:
            typer.echo("looking for devices, and spinning on them", err=True)
        devices, notes = selftest.on_devices(fleet)
    if format is DataFormat.JSON:
        print_json({"results": [asdict(each) for each in found + devices], "notes": notes})
    else:
        typer.echo(diagnosis.selftest_text(found + devices, notes, width()), nl=False)
    return all(each.passed for each in found + devices)


def _has_gpu() -> bool:
    from benchbench import nvml

    gpus = nvml.connect()
    if isinstance(gpus, str):
        return False
    try:
        return gpus.count() > 0
    finally:
        gpus.close()
