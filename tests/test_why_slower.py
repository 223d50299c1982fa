"""The page on why one framework is slower than another has the figures of the studies."""

import re

import pytest

from tests.test_architecture import ROOT

PAGE = (ROOT / "docs/why_slower.md").read_text()
OUTPUT = ROOT / "studies/output"
BACKENDS = ("torch", "tensorflow", "jax", "onnxruntime")
PASSIVE = "[env:OMP_WAIT_POLICY=passive]"


def measured_ms() -> dict[tuple[str, str], float]:
    """(workload, backend) → CPU milliseconds; torch's with threads that wait passively."""
    milliseconds_by_case = {}
    for line in (OUTPUT / "operators.md").read_text().splitlines():
        if case := re.match(r"\| (\w+)\(.*@(\w+):cpu(\S*) \| ([0-9.]+) \|", line):
            work, backend, suffix, milliseconds = case.groups()
            if (backend == "torch") == (suffix == PASSIVE):
                milliseconds_by_case[work, backend] = float(milliseconds)
    return milliseconds_by_case


def documented() -> dict[tuple[str, str], str]:
    """The same figures on the page."""
    rows = re.findall(r"^\| `(\w+)` \| ([0-9].*) \|$", PAGE, re.MULTILINE)
    cells = {
        (work, backend): cell
        for work, row in rows
        for backend, cell in zip(BACKENDS, row.split(" | "), strict=True)
    }
    return {key: cell for key, cell in cells.items() if cell != "–"}


def test_the_table_has_every_measured_case() -> None:
    assert documented().keys() == measured_ms().keys()


@pytest.mark.parametrize("key", documented(), ids="-".join)
def test_figures_of_the_table_match_the_study(key: tuple[str, str]) -> None:
    assert float(documented()[key]) == pytest.approx(measured_ms()[key], rel=0.03)


@pytest.mark.parametrize(
    ("quoted", "study", "row"),
    [
        (r"NCHW takes ([0-9.]+) times", "jax_convolutions.md", "NCHW, OIHW"),
        (r"patches and a product ([0-9.]+) times", "jax_convolutions.md", "patches and a product"),
        (r"takes ([0-9.]+) times as long here", "jax_convolutions.md", "the same without YNN"),
        (
            r"takes ([0-9.]+) times as long as the convolution",
            "jax_convolutions.md",
            "convolution, gradient of the filters",
        ),
        (r"as a product ([0-9.]+) times", "jax_convolutions.md", "product, gradient of the filters"),
        (r"once, and takes ([0-9.]+) times", "other_forms.md", "filters constant"),
        (r"Keras' order of axes ([0-9.]+) times", "other_forms.md", "heads behind the length, as in Keras"),
        (
            r"7 × 7 pixels takes ([0-9.]+) times as long with weights",
            "other_forms.md",
            "weights in oneDNN's layout",
        ),
    ],
)
def test_ratios_in_the_text_match_the_study(quoted: str, study: str, row: str) -> None:
    text = (OUTPUT / study).read_text()
    (figure,) = re.findall(quoted, " ".join(PAGE.split()))
    first = next(line for line in text.splitlines() if line.startswith(f"| {row} |"))
    assert float(figure) == pytest.approx(float(first.split("|")[5].split("±")[0]), abs=0.06)


def test_figures_before_and_after_match_the_study() -> None:
    rows = [line.split("|") for line in (OUTPUT / "checkouts.md").read_text().splitlines() if "@" in line]
    ratios = {
        (work.split("(")[0].strip(), work.split("@")[1].split(":")[0]): ratio
        for _, work, _, _, ratio, *_ in rows
    }
    quoted = re.findall(r"^\| `(\w+)` \| (JAX|TensorFlow|torch) \| ([0-9.]+ \[.*\]) \|$", PAGE, re.MULTILINE)
    assert all(ratios.pop((work, name.lower())).strip() == figure for work, name, figure in quoted)
    assert f"The intervals of the other {len(ratios)} rows contain 1" in PAGE
    assert all(float(low) <= 1 <= float(high) for low, high in map(interval, ratios.values()))
    assert f"all {len(rows)}\nrows" in PAGE


def interval(ratio: str) -> tuple[str, str]:
    low, high = ratio.partition("[")[2].rstrip("] ").split(", ")
    return low, high
