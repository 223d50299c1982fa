"""Runs in notebooks: what a cell shows, figures, and the notebook of the documentation."""

import re
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from benchbench.errors import UsageError
from tests.factories import a_case, a_failure, a_measurement, a_record, a_run
from tests.test_architecture import ROOT

NOTEBOOK = ROOT / "docs/examples/decision.ipynb"


def test_the_text_form_of_a_run_is_one_line() -> None:
    run = a_run([a_record(a_measurement()), a_record(a_failure(), case=a_case(backend="jax", mode="jit"))])
    assert repr(run) == f"<Run {run.info.id}, {run.info.started}: 1 ok, 1 crashed>"


def test_a_cell_shows_the_answer_and_the_table_of_a_run() -> None:
    shown = a_run(
        [
            a_record(a_measurement()),
            a_record(a_failure(message="<b>")),
        ]
    )._repr_html_()
    assert "<table>" in shown
    assert "torch eager" in shown
    assert "<b>&lt;b&gt;" not in shown
    assert "<button" not in shown  # nothing would happen without the page's script


def test_a_run_is_drawn_as_a_figure() -> None:
    run = a_run([a_record(a_measurement())])
    assert isinstance(run.plot(), Figure)
    assert run.plot("latency").axes
    with pytest.raises(UsageError, match="no plot named 'speed'"):
        run.plot("speed")
    with pytest.raises(UsageError, match="nothing to plot"):
        a_run([]).plot()


@pytest.mark.real
def test_the_notebook_of_the_documentation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("ACCELBENCH_RESULTS", str(tmp_path / "results"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(cells) == 5
    assert not any(cell.outputs for cell in cells)  # figures of another machine
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    _, run, figure, frame, decision = [cell.outputs for cell in cells]
    assert "<table>" in run[-1].data["text/html"]
    assert "image/png" in figure[-1].data
    assert "hours_per_million" in frame[-1].data["text/html"]
    assert re.search(r"decision: (torch|onnxruntime|any)", decision[-1].text)
