"""`accelbench doctor`: the machine examined; its measuring modes are in trials.py."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated

import typer

from benchbench.cli.app import app
from benchbench.cli.formats import print_document
from benchbench.cli.options import (
    BackendOption,
    DataFormat,
    DeviceOption,
    DtypeOption,
    FormatOption,
    PythonOption,
    ThreadsOption,
)
from benchbench.cli.trials import Choice, ceilings_of, noise_of, selftested
from benchbench.errors import UsageError


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
    aa: Annotated[
        str | None, typer.Option("--aa", metavar="SUITE", help="Measure a suite against itself: its noise.")
    ] = None,
    backend: BackendOption = None,
    python: PythonOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    threads: ThreadsOption = None,
    format: FormatOption = DataFormat.TERMINAL,
) -> None:
    """What on this machine spoils measurements, what it does to them, and what to do about it.

    Examples: accelbench doctor --strict --format json; accelbench doctor --aa quick -b torch
    """
    modes = {"--strict": strict, "--ceilings": ceilings, "--selftest": selftest, "--aa": aa}
    narrowed = {
        "--backend": backend,
        "--python": python,
        "--device": device,
        "--dtype": dtype,
        "--threads": threads,
    }
    mode = _mode(modes, {name for name, value in narrowed.items() if value})
    choice = Choice(backend, python, device, dtype, threads, format)
    if mode == "--ceilings":
        ceilings_of(choice)
    elif mode == "--aa" and aa:
        noise_of(aa, choice)
    elif mode == "--selftest":
        raise typer.Exit(0 if selftested(choice) else 4)
    else:
        raise typer.Exit(4 if _examined(format) and strict else 0)


TAKES = {  # mode → what narrows it
    "--ceilings": {"--backend", "--python", "--device", "--dtype", "--threads"},
    "--aa": {"--backend", "--python", "--device", "--dtype", "--threads"},
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
    from benchbench.diagnosis.checks.base import Level
    from benchbench.diagnosis.findings import examine, this_host
    from benchbench.documents.doctor import findings_document
    from benchbench.machine import nvml

    gpus = nvml.connect()
    try:
        found = examine(this_host(gpus))
    finally:
        if not isinstance(gpus, str):
            gpus.close()
    print_document(findings_document(found), format)
    return any(finding.status is Level.PROBLEM for finding in found)
