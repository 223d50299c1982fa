"""`accelbench doctor`: the machine examined, or what can be measured about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import typer

from benchbench.cli.app import EXPLAIN, app
from benchbench.cli.formats import TERMINAL, FormatOption, print_document
from benchbench.cli.options import measure_options, option
from benchbench.cli.program import signals
from benchbench.cli.screen import tell
from benchbench.errors import UsageError
from benchbench.model.options import MeasureOptions, flag_of

TAKEN = ("backends", "pythons", "devices", "dtypes", "threads", "wait_s")
TAKES = {  # mode → the fields that it takes
    "--ceilings": TAKEN,
    "--aa": TAKEN,
    "--selftest": ("backends", "pythons", "threads", "wait_s"),
}


@app.command(rich_help_panel=EXPLAIN)
@measure_options(only=TAKEN)
def doctor(
    *,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 4 if there is a problem.")] = False,
    ceilings: Annotated[
        bool,
        typer.Option("--ceilings", help="Measure and keep the best GEMM and copy rates."),
    ] = False,
    selftest: Annotated[
        bool, typer.Option("--selftest", help="Measure work of known length; exit 4 if a result is off.")
    ] = False,
    aa: Annotated[
        str | None,
        option(
            "--aa",
            metavar="SUITE",
            text="Compare a suite with itself, to see its noise.",
        ),
    ] = None,
    options: MeasureOptions,
    format: FormatOption = TERMINAL,
) -> None:
    """Find what on this machine spoils measurements, and what to do about it.

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
    """The one mode asked for, empty if none is. Raises UsageError."""
    asked = [name for name, wanted in modes.items() if wanted]
    if len(asked) > 1:
        raise UsageError(f"{asked[0]} and {asked[1]} exclude each other.", "Give one of them.")
    mode = asked[0] if asked else ""
    for name in sorted(options.given - set(TAKES.get(mode, ()))):
        takers = ", ".join(taker for taker, taken in TAKES.items() if name in taken)
        raise UsageError(
            f"{flag_of(name)} does not go with {mode or 'doctor alone'}.", f"It is for {takers}."
        )
    return mode


def _show_ceilings(options: MeasureOptions, format: str) -> None:
    from benchbench import api
    from benchbench.cli.live import Lines
    from benchbench.documents.doctor import ceilings_document

    measured = api.measure_ceilings(options=options, observer=Lines(summary=False))
    print_document(ceilings_document(measured.found, measured.notes), format)
    tell(f"kept in {measured.path}")


def _show_noise(options: MeasureOptions, format: str) -> None:
    from benchbench import api
    from benchbench.cli.live import Lines
    from benchbench.documents.doctor import noise_document

    measured = api.measure_noise(options=options, observer=Lines(summary=False))
    print_document(noise_document(measured), format)


def _passes_selftest(options: MeasureOptions, format: str) -> bool:
    from benchbench import api
    from benchbench.cli.live import Lines
    from benchbench.documents.doctor import selftest_document

    done = api.selftest(options=options, observer=Lines(summary=False))
    print_document(selftest_document(done.results, done.notes), format)
    return done.passed


def _finds_problem(format: str) -> bool:
    from benchbench import api
    from benchbench.diagnosis.checks.base import Level
    from benchbench.documents.doctor import findings_document

    findings = api.doctor()
    print_document(findings_document(findings), format)
    return any(finding.status is Level.PROBLEM for finding in findings)
