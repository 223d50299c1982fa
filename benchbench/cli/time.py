"""`accelbench time`: a function of the user's measured, or two of them interleaved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchbench.cli.app import MEASURE, app
from benchbench.cli.formats import TERMINAL, FormatOption, print_document
from benchbench.cli.options import ResultsOption, argument, measure_options, option
from benchbench.cli.program import signals
from benchbench.errors import UsageError
from benchbench.model.options import MeasureOptions

if TYPE_CHECKING:
    from benchbench.cli.live import Lines
    from benchbench.documents.document import Document
    from benchbench.judging.claims import Claim
    from benchbench.model.run import Run

FIELDS = ("preset", "rounds", "timeout_s", "wait_s", "threads", "allocator", "isolation", "seed", "tags")


@app.command("time", rich_help_panel=MEASURE)
@measure_options(only=FIELDS)
def time_(
    *,
    function: Annotated[str, argument("file.py:function, or package.module:function.", metavar="function")],
    other: Annotated[
        str | None, argument("A second one: both are measured interleaved, and compared.", metavar="other")
    ] = None,
    setup: Annotated[
        str | None,
        option(
            "--setup",
            "-s",
            text="Called once in each process; what it returns is passed on: a name beside the function's, "
            "or file.py:name.",
        ),
    ] = None,
    backend: Annotated[
        str | None,
        option(
            "--backend",
            "-b",
            text="Whose work is waited for: torch, tensorflow, jax; python: nothing. [default: by result]",
        ),
    ] = None,
    device: Annotated[
        str | None, option("--device", "-d", text="cpu, cuda:0 and the like. [default: the one in use]")
    ] = None,
    claims: Annotated[
        str | None, option("--claims", text="A time claimed of a call, as 1.2ms, to hold it against.")
    ] = None,
    options: MeasureOptions,
    results: ResultsOption = Path("results"),
    format: FormatOption = TERMINAL,
) -> None:
    """Measure a function of yours: each round in a process of its own, waited for, stored as a run.

    Examples: accelbench time bench.py:step; accelbench time bench.py:old bench.py:new -s inputs;
    accelbench time bench.py:step --claims 1.2ms
    """
    if other and claims:
        raise UsageError("--claims is of one function.", "Name one function, or leave --claims out.")
    from benchbench import api
    from benchbench.cli.live import Lines
    from benchbench.documents.comparison import comparison_document
    from benchbench.documents.function import time_document
    from benchbench.documents.plan import failing
    from benchbench.store.selectors import results_option

    shown = Lines(results=results)
    with signals(shown.kept):
        if other:
            compared = api.measure_ab(
                function,
                other,
                setup=setup,
                backend=backend,
                device=device,
                results=results,
                observer=shown,
                options=options,
            )
            document: Document = comparison_document(compared, compared.verdicts)
            made = [*compared.ref.records, *compared.new.records]
        else:
            run, claim = _measured(function, claims, setup, backend, device, results, options, shown)
            document = time_document(run, claim, results_option(results))
            made = list(run.records)
    print_document(document, format)
    raise typer.Exit(4 if failing(made) else 0)


def _measured(
    function: str,
    claims: str | None,
    setup: str | None,
    backend: str | None,
    device: str | None,
    results: Path,
    options: MeasureOptions,
    shown: Lines,
) -> tuple[Run, Claim | None]:
    from benchbench import api

    if claims:
        return api.measure_claim(
            function,
            claims,
            setup=setup,
            backend=backend,
            device=device,
            results=results,
            observer=shown,
            options=options,
        )
    run = api.measure(
        function,
        setup=setup,
        backend=backend,
        device=device,
        results=results,
        observer=shown,
        options=options,
    )
    return run, None
