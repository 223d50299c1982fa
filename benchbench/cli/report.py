"""`report`, `profile` and `site`: show stored runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchbench.cli.app import COMPARE, EXPLAIN, MEASURE, app
from benchbench.cli.formats import (
    TERMINAL,
    FormatOption,
    checked_several,
    format_of,
    print_document,
    write_formats,
)
from benchbench.cli.options import Names, PriceOption, ResultsOption, option
from benchbench.cli.screen import print_answer, print_message
from benchbench.errors import CannotWrite, UsageError
from benchbench.exporters import FORMATS
from benchbench.format import visible
from benchbench.model.options import split_names

if TYPE_CHECKING:
    from benchbench.documents.document import Document


RunArgument = Annotated[str, typer.Argument(help="Run: an id or its start, latest, latest~1, or a folder.")]


@app.command(rich_help_panel=MEASURE)
def report(
    run: RunArgument = "latest",
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help=f"Format: {', '.join(FORMATS)}; overrides the extension of -o. Several, such as png,svg, "
            "are written to -o FOLDER.",
            callback=checked_several,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        option(
            "--output",
            "-o",
            text="File, or folder for several plots. [default: the screen; plots: the run's folder]",
        ),
    ] = None,
    columns: Annotated[Names, option("--columns", text="Columns: latency, p50, p99, rate, memory, …")] = None,
    by: Annotated[
        str, option("--by", text="Compare the values of dtype, mode, target, device, or a parameter.")
    ] = "",
    plot: Annotated[
        Names,
        option("--plot", text="Draw only this plot, such as latency; saved as PNG if the table is printed."),
    ] = None,
    price: PriceOption = None,
    commands: Annotated[
        bool, typer.Option("--commands", help="Print commands that measure each row again, one per line.")
    ] = False,
    results: ResultsOption = Path("results"),
) -> None:
    """Show the fastest alternative of each work, and a table per work. -o report.html writes a page.

    Examples: accelbench report latest~1 --by dtype; accelbench report --columns latency,p99 -o x.md;
    accelbench report -o pictures --format png,svg
    """
    from benchbench import api
    from benchbench.documents.document import select_plots
    from benchbench.plan.config import known_prices
    from benchbench.store.selectors import folder_in_results

    if commands and (format or output or by):
        raise UsageError("Commands have a line for each row.", "Leave --format, -o and --by out.")
    several = split_names([format] if format else [])
    if len(several) > 1 and not output:
        raise UsageError("Several formats are written to a folder.", "Name it: -o FOLDER")
    format_name = format or format_of(output)
    folder = api.folder(run, results)
    prices = known_prices(price or ())
    document = api.report(folder, columns=split_names(columns), by=by, prices=prices)
    if commands:
        _print_commands(document)
        return
    if plot_names := split_names(plot):
        plots = select_plots(document.plots(), plot_names)
        document = replace(document, plots=lambda: plots)
    if len(several) > 1 and output:
        write_formats(document, several, output)
        return
    run_folder = folder_in_results(results, folder)
    print_document(document, format_name, output, run_folder)
    if format_name == TERMINAL and not output and plot:
        _save_plots(document, run_folder)


def _print_commands(document: Document) -> None:
    """Print the command of each row on an unbroken line. Rows without a command are skipped."""
    lines = [visible(command) for table in document.tables for command in table.commands if command]
    if not lines:
        print_message("no command measures a row of this run again")
    print_answer("".join(f"{line}\n" for line in lines))


def _save_plots(document: Document, folder: Path | None) -> None:
    """Save the plots in the run's folder. Raises CannotWrite."""
    if folder:
        print_document(document, "png", None, folder)
    elif document.plots():
        message = "The plots were not saved: the run is not among the results."
        raise CannotWrite(message, "accelbench report --format png -o FOLDER saves them.")


@app.command(rich_help_panel=COMPARE)
def site(
    output: Annotated[Path, option("--output", "-o", text="Folder for the pages.")] = Path("site"),
    results: ResultsOption = Path("results"),
) -> None:
    """Write web pages of all stored runs: an index, and a page per run and per case.

    Example: accelbench site -o public
    """
    from benchbench import api
    from benchbench.cli.live import Lines
    from benchbench.exporters.site import site_files
    from benchbench.store import disk, selectors

    observer = Lines()
    trends = api.history(results=results, observer=observer)
    runs = selectors.read_all(results, lambda _: None)  # history already reported unreadable runs
    count = 0
    for name, content in site_files(runs, trends):
        disk.save_below(output, output / name, content)
        count += 1
    print_message(f"wrote {count} files: open {output / 'index.html'}")


@app.command(rich_help_panel=EXPLAIN)
def profile(
    run: Annotated[str, typer.Argument(help="Run that was measured with --profile.")] = "latest",
    new: Annotated[
        str | None, typer.Argument(help="Second run: show which operators explain the difference.")
    ] = None,
    case: Annotated[
        Names, option("--case", "-c", text="Only cases whose ids contain or match these.")
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Number of operators per case.")] = 15,
    format: FormatOption = TERMINAL,
    results: ResultsOption = Path("results"),
) -> None:
    """Show the time of a step by operator; with two runs, the operators that explain the difference.

    Examples: accelbench profile; accelbench profile latest~1 latest -c '*@torch:*' --top 5
    """
    from benchbench import api
    from benchbench.cli.live import Lines
    from benchbench.documents.profile import differences_document, profile_document
    from benchbench.store.artifacts import ARTIFACTS

    if new is None:
        tables = api.profile(run, cases=split_names(case), results=results, observer=Lines())
        document = profile_document(tables, top, api.folder(run, results) / ARTIFACTS)
    else:
        differences = api.compare_profiles(
            run, new, cases=split_names(case), results=results, observer=Lines()
        )
        document = differences_document(differences, top)
    print_document(document, format)
