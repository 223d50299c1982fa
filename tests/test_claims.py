"""Claimed speed-ups: agreement of results, verdicts, and the command that checks a claim."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from benchbench.errors import UsageError
from benchbench.judging.comparison import Claim, ClaimVerdict, Comparison, claimed_speedup
from benchbench.model.function import Agreement
from benchbench.worker.agreement import compare_functions
from tests.program import accelbench

SAME = Agreement(equal=True, reason="", inputs=2)
OTHER = Agreement(equal=False, reason="")
UNKNOWN = Agreement(equal=None, reason="")
BENCH = """
import numpy as np
from benchbench.backends import fake

def inputs():
    return np.linspace(0, 1, 100, dtype=np.float32)

def old(x):
    fake.sleep(2e-3)
    return x + x

def new(x):
    fake.sleep(1e-3)
    return 2 * x

def wrong(x):
    fake.sleep(1e-3)
    return 3 * x
"""
MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        return {expression}

def inputs(batch=4):
    return torch.randn(batch, 8)
"""


def agreement(first: Callable[..., Any], second: Callable[..., Any], *arguments: Any) -> Agreement:
    return compare_functions(first, second, (arguments, {}))


def normal(*shape: int) -> Any:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def total(values: Any) -> Any:
    return {"sum": values.sum(axis=0), "count": len(values)}


def test_other_rounding_is_the_same_result_for_two_sets_of_inputs() -> None:
    def backwards(values: Any) -> Any:
        return {"sum": values[::-1].cumsum(axis=0)[-1], "count": len(values)}

    result = agreement(total, backwards, normal(200, 5))
    assert result.equal
    assert result.inputs == 2


def raising(values: Any) -> Any:
    raise ArithmeticError("not implemented")


WRONG: dict[str, Callable[..., Any]] = {
    "less precise": lambda values: total(values.astype(np.float16).astype(np.float32)),
    "without the last": lambda values: total(values) | {"sum": values[:-1].sum(axis=0)},
    "another count": lambda values: total(values) | {"count": 1},
    "without a result": lambda values: {"sum": values.sum(axis=0)},
    "another shape": lambda values: total(values) | {"sum": values.sum()},
    "raising": raising,
    "not a number": lambda values: total(values) | {"sum": values.sum(axis=0) * np.nan},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_another_result_is_found(wrong: str) -> None:
    assert agreement(total, WRONG[wrong], normal(200, 5)).equal is False


def test_complex_results_may_differ_by_rounding_only() -> None:
    values = normal(64) + 1j * normal(64)
    matrix = np.fft.fft(np.eye(64))

    def product(x: Any) -> Any:
        return matrix.astype(x.dtype) @ x

    assert agreement(product, np.fft.fft, values.astype(np.complex64)).equal
    assert agreement(product, lambda x: 1.001 * np.fft.fft(x), values.astype(np.complex64)).equal is False


def test_a_stored_result_is_found_with_shuffled_inputs() -> None:
    stored: list[Any] = []

    def cached(values: Any) -> Any:
        stored.append(np.cumsum(values))
        return stored[0]

    assert agreement(np.cumsum, cached, normal(50)).equal is False


def test_a_function_that_overwrites_its_input_does_not_change_that_of_the_other() -> None:
    def in_place(values: Any) -> Any:
        values *= 2
        return values

    assert agreement(in_place, lambda values: values + values, normal(50)).equal


def test_random_results_cannot_be_compared() -> None:
    source = np.random.default_rng(0)

    def noisy(values: Any) -> Any:
        return values + source.standard_normal(values.shape)

    assert agreement(noisy, noisy, normal(50)).equal is None
    assert agreement(raising, total, normal(50)).equal is None


def test_inputs_that_are_invalid_when_shuffled_do_not_count() -> None:
    def sorted_only(values: Any) -> Any:
        assert (np.diff(values) >= 0).all()
        return values

    result = agreement(sorted_only, sorted_only, np.sort(normal(50)))
    assert result.equal
    assert result.inputs == 1


def test_a_result_in_float32_is_compared_in_float32_if_the_function_has_no_float64() -> None:
    def only_float32(values: Any) -> Any:
        assert values.dtype == np.float32
        return values.sum()

    assert agreement(only_float32, lambda values: values[::-1].cumsum()[-1], normal(500)).equal
    assert agreement(only_float32, lambda values: 1.001 * values.sum(), normal(500)).equal is False


def test_functions_without_arguments_are_compared() -> None:
    assert agreement(lambda: 3, lambda: 3).equal
    assert agreement(lambda: 3, lambda: 4).equal is False


@pytest.mark.parametrize(
    ("results", "low", "high", "verdict"),
    [
        (SAME, 2.1, 2.3, ClaimVerdict.CONFIRMED),
        (SAME, 1.95, 2.3, ClaimVerdict.CONFIRMED),  # within the margin
        (SAME, 1.8, 2.3, ClaimVerdict.UNDECIDED),
        (SAME, 1.5, 1.9, ClaimVerdict.REFUTED),
        (SAME, None, None, ClaimVerdict.UNDECIDED),
        (OTHER, 2.1, 2.3, ClaimVerdict.REFUTED),
        (OTHER, None, None, ClaimVerdict.REFUTED),
        (UNKNOWN, 2.1, 2.3, ClaimVerdict.UNDECIDED),
        (UNKNOWN, 1.5, 1.9, ClaimVerdict.REFUTED),
    ],
)
def test_a_claim_needs_equal_results_and_the_claimed_speed_up(
    results: Agreement, low: float | None, high: float | None, verdict: ClaimVerdict
) -> None:
    case = SimpleNamespace(
        ratio=high and low and 2 / (low + high), low=high and 1 / high, high=low and 1 / low, reason=""
    )
    comparison = cast("Comparison", SimpleNamespace(verdicts=(case,)))
    assert Claim(speedup=2.0, agreement=results, comparison=comparison).verdict is verdict


@pytest.mark.parametrize(("text", "speedup"), [("2x", 2.0), ("1.5×", 1.5), ("3", 3.0), (1.25, 1.25)])
def test_a_claim_is_a_number(text: str | float, speedup: float) -> None:
    assert claimed_speedup(text) == speedup


@pytest.mark.parametrize("text", ["", "fast", "0x", "-2x", "inf", -1.0, float("nan")])
def test_another_claim_is_refused(text: str | float) -> None:
    with pytest.raises(UsageError):
        claimed_speedup(text)


@pytest.mark.parametrize(
    ("function", "claim", "verdict", "code"),
    [("new", "2x", "confirmed", 0), ("new", "3x", "refuted", 10), ("wrong", "2x", "refuted", 10)],
)
def test_the_command_checks_a_claim(
    tmp_path: Path, function: str, claim: str, verdict: str, code: int
) -> None:
    (tmp_path / "bench.py").write_text(BENCH)
    command = ("time", "bench.py:old", f"bench.py:{function}", "-s", "inputs", "-b", "fake", "--heats", "2")
    done = accelbench(*command, "--claim", claim, "--format", "json", cwd=tmp_path, code=code)
    data = json.loads(done.stdout)
    assert data["verdict"] == verdict
    assert data["speedup"] == pytest.approx(2.0, rel=1e-2)
    assert data["results"]["equal"] is (function == "new")


def test_a_claim_needs_two_functions(tmp_path: Path) -> None:
    (tmp_path / "bench.py").write_text(BENCH)
    accelbench("time", "bench.py:old", "--claim", "2x", cwd=tmp_path, code=2)


@pytest.mark.real
@pytest.mark.parametrize(
    ("expression", "equal"),
    [("torch.relu(self.layer(x))", True), ("torch.relu(self.layer(x)) + 1e-3", False)],
)
def test_two_models_have_the_same_weights(tmp_path: Path, expression: str, equal: bool) -> None:
    (tmp_path / "first.py").write_text(MODEL.format(expression="self.layer(x).clamp(min=0)"))
    (tmp_path / "second.py").write_text(MODEL.format(expression=expression))
    command = ("time", "first.py", "second.py", "--heats", "2", "--format", "json")
    done = accelbench(*command, "--claim", "0.05x", cwd=tmp_path, code=0 if equal else 10)
    data = json.loads(done.stdout)
    assert data["results"]["equal"] is equal, done.stderr
    assert data["speedup"] > 0
