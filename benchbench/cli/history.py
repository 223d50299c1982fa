"""`accelbench history`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchbench.cli.app import app
from benchbench.cli.options import DataFormat, FormatOption, ResultsOption
from benchbench.cli.screen import print_json


@app.command()
def history(
    case: Annotated[
        list[str] | None, typer.Argument(help="Parts of case ids, or patterns. [default: all]")
    ] = None,
    metric: Annotated[
        str, typer.Option("--metric", help="A number of the rows, such as cold_s.")
    ] = "latency_s",
    threshold: Annotated[
        float, typer.Option("--threshold", min=0, help="The smallest change to tell, as a fraction.")
    ] = 0.03,
    results: ResultsOption = Path("results"),
    format: FormatOption = DataFormat.TERMINAL,
) -> None:
    """Every stored run over time, and the runs between which a case became slower or faster.

    Examples: accelbench history; accelbench history gemm --metric peak_host_bytes --format json
    """
    from benchbench import store, trend

    wanted = trend.metric_named(metric)
    runs = [store.read(store.find(results, name)) for name in store.runs(results) or ("latest",)]
    found = trend.trends(runs, wanted, case or (), threshold)
    if format is DataFormat.JSON:
        print_json(trend.fields(found))
    else:
        typer.echo(trend.text(found), nl=False)
