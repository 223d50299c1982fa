"""LaTeX: every number has a macro, and names are escaped."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchbench.documents.run import report_document
from benchbench.exporters.text import escape_latex
from benchbench.model.run import Run
from tests.factories import a_case, a_hostile_run, a_run, some_rounds
from tests.rendering import rendered

OURS = {
    *(
        "newcommand",
        "accelbench",
        "accelbenchtables",
        "expandafter",
        "def",
        "csname",
        "endcsname",
        "ifcsname",
    ),
    *("else", "fi", "begin", "end", "centering", "small", "caption", "toprule", "midrule", "bottomrule"),
    *("textbackslash", "textasciicircum", "textasciitilde", "textless", "textgreater", "textbar", "textbf"),
    *("textquotedbl", "times", "pm", "cdot", "to", "mu", "usepackage"),
}


def latex(run: Run) -> str:
    return rendered(report_document(run), "latex")


def test_cells_have_macros_by_table_row_and_column() -> None:
    jax = a_case(backend="jax", mode="jit")
    text = latex(a_run([*some_rounds(1e-3, 1e-3, 1e-3), *some_rounds(2e-3, 2e-3, 2e-3, case=jax)]))
    macros = dict(re.findall(r"\\def\\csname accelbench@([^\\]*)\\endcsname\{(.*)\}", text))
    assert macros["gemm-m-64-n-64-k-64-float32-cpu@torch-eager@latency"].startswith("1.00 ms")
    assert macros["gemm-m-64-n-64-k-64-float32-cpu@jax-jit@ratio"] == r"2.00$\times$"
    assert text.count(r"\toprule") == text.count(r"\end{tabular}") == 1


@pytest.mark.parametrize(
    "name", [r"\input{/etc/passwd}", "a%b#c&d_e^f~g$h{i}", "]\\\\[", "\x1b[31m\u202e", "^^M"]
)
def test_names_are_escaped(name: str) -> None:
    text = latex(a_hostile_run(name))
    assert {*re.findall(r"\\([A-Za-z]+)", text)} <= OURS
    assert not {"\x1b", "\u202e"} & set(text)


@given(st.text())
def test_escaped_text_has_balanced_braces_and_no_special_characters(text: str) -> None:
    escaped = escape_latex(text)
    bare = re.sub(r"\\[{}$&#_%]|\\[a-z]+\{\}|\$(?:\\[a-z]+|-)\$", "", escaped)
    assert not set(r"\{}$&#_%^~") & set(bare)
