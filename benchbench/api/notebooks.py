"""Runs in notebooks: the HTML that a cell shows, and figures."""

from __future__ import annotations

import sys
from dataclasses import replace
from io import BytesIO
from typing import TYPE_CHECKING

from benchbench.errors import UsageError
from benchbench.model.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 110  # dots per inch of a figure in a notebook
MAX_TABLES = 12  # works with a table in a cell; a page has all


def run_html(run: Run) -> str:
    """Answers and tables of a run's report, as a fragment of HTML."""
    from benchbench.api.stored import report
    from benchbench.exporters.page import fragment
    from benchbench.format import count_of

    document = report(run)
    more = len(document.tables) - MAX_TABLES
    note = f"{count_of(more, 'more table')}: accelbench report {run.info.id} -o report.html"
    shown = replace(document, tables=document.tables[:MAX_TABLES])
    return fragment(replace(shown, notes=(*shown.notes, note)) if more > 0 else shown)


def run_figure(run: Run, name: str = "") -> Figure:
    """Figure of the plot with this name, or of the first plot that is not empty. Raises UsageError."""
    from benchbench.api.stored import report
    from benchbench.documents.document import select_plots
    from benchbench.exporters.plots import figure_of

    plots = [plot for plot in select_plots(report(run).plots(), [name] if name else []) if plot.panels]
    if not plots:
        raise UsageError(f"Run {run.info.id} has nothing to plot.", "benchbench.report(run) has the reasons.")
    figure = figure_of(plots[0])
    _display_figures()
    return figure


def _display_figures() -> None:
    """Let the running notebook display figures as pictures, even if it has not loaded pyplot."""
    from matplotlib.figure import Figure

    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    formatter = shell.display_formatter.formatters.get("image/png") if shell else None
    if formatter is not None and Figure not in formatter:
        formatter.for_type(Figure, _png)


def _png(figure: Figure) -> bytes:
    content = BytesIO()
    figure.savefig(content, format="png", dpi=DPI)
    return content.getvalue()
