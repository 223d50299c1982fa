"""`accelbench doctor`: a function per mode."""

from __future__ import annotations

from typing import Annotated

import typer

from benchbench.cli.app import app
from benchbench.cli.options import DataFormat, FormatOption
from benchbench.cli.screen import print_json, width


@app.command()
def doctor(
    strict: Annotated[bool, typer.Option("--strict", help="Exit 4 when there is a problem.")] = False,
    format: FormatOption = DataFormat.TERMINAL,
) -> None:
    """What on this machine spoils measurements, what it does to them, and what to do about it.

    Examples: accelbench doctor; accelbench doctor --strict --format json
    """
    raise typer.Exit(4 if _examined(format) and strict else 0)


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
