"""`accelbench doctor`: examine the machine, or measure its ceilings, noise or the accuracy of timing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import typer

from benchbench.cli.app import EXPLAIN, app
from benchbench.cli.formats import TERMINAL, FormatOption, print_document
from benchbench.cli.options import measure_options, option
from benchbench.cli.program import signals
from benchbench.cli.screen import print_message
from benchbench.errors import UsageError
from benchbench.model.options import MeasureOptions, flag_of

COMMON = ("backends", "pythons", "devices", "dtypes", "threads", "wait_s")
OPTIONS_OF = {  # fields of MeasureOptions that each mode accepts
    "--ceilings": COMMON,
    "--aa": COMMON,
    "--selftest": ("backends", "pythons", "threads", "wait_s"),
}


@app.command(rich_help_panel=EXPLAIN)
@measure_options(only=COMMON)
def doctor(
    *,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 4 if a problem is found.")] = False,
    ceilings: Annotated[
        bool,
        typer.Option("--ceilings", help="Measure and store the best GEMM and copy rates."),
    ] = False,
    selftest: Annotated[
        bool, typer.Option("--selftest", help="Measure work of known duration; exit 4 if a result is wrong.")
    ] = False,
    aa: Annotated[
        str | None,
        option(
            "--aa",
            metavar="SUITE",
            text="Compare a suite with itself to show its noise.",
        ),
    ] = None,
    options: MeasureOptions,
    format: FormatOption = TERMINAL,
) -> None:
    """Find causes of unreliable measurements on this machine, with remedies.

    Examples: accelbench doctor --strict --format json; accelbench doctor --aa quick -b torch
    """
    modes = {"--strict": strict, "--ceilings": ceilings, "--selftest": selftest, "--aa": aa}
    mode = _mode(modes, options)
    with signals():
        if mode == "--ceilings":
            _show_ceilings(options, format)
        elif mode == "--aa" and aa:
            _show_noise(replace(options, suites=(aa,)), format)
        elif mode == "--selftest":
            raise typer.Exit(0 if _passes_selftest(options, format) else 4)
        else:
            raise typer.Exit(4 if _finds_problem(format) and strict else 0)


def _mode(modes: Mapping[str, object], options: MeasureOptions) -> str:
    """The requested mode, or empty. Raises UsageError for two modes, or options that do not apply."""
    requested = [name for name, value in modes.items() if value]
    if len(requested) > 1:
        raise UsageError(f"{requested[0]} and {requested[1]} exclude each other.", "Give one of them.")
    mode = requested[0] if requested else ""
    for name in sorted(options.changed_fields - set(OPTIONS_OF.get(mode, ()))):
        accepting = ", ".join(other for other, accepted in OPTIONS_OF.items() if name in accepted)
        raise UsageError(
            f"{flag_of(name)} does not go with {mode or 'doctor alone'}.", f"It is for {accepting}."
        )
    return mode


def _show_ceilings(options: MeasureOptions, format: str) -> None:
    from benchbench import api
    from benchbench.cli.live import Lines
    from benchbench.documents.doctor import ceilings_document

    result = api.measure_ceilings(options=options, observer=Lines(summary=False))
    print_document(ceilings_document(result.found, result.notes), format)
    print_message(f"kept in {result.path}")


def _show_noise(options: MeasureOptions, format: str) -> None:
    from benchbench import api
    from benchbench.cli.live import Lines
    from benchbench.documents.doctor import noise_document

    noise = api.measure_noise(options=options, observer=Lines(summary=False))
    print_document(noise_document(noise), format)


def _passes_selftest(options: MeasureOptions, format: str) -> bool:
    from benchbench import api
    from benchbench.cli.live import Lines
    from benchbench.documents.doctor import selftest_document

    result = api.selftest(options=options, observer=Lines(summary=False))
    print_document(selftest_document(result.results, result.notes), format)
    return result.passed


def _finds_problem(format: str) -> bool:
    from benchbench import api
    from benchbench.diagnosis.checks.base import Level
    from benchbench.documents.doctor import findings_document

    findings = api.doctor()
    print_document(findings_document(findings), format)
    return any(finding.status is Level.PROBLEM for finding in findings)
