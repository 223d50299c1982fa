"""Rates of language models in a report: tokens per second and, for decoding, the bound of the memory."""

from typing import Any

import pytest

from benchbench.analyse.rows import Row, rows
from benchbench.documents.run import answer, report_document
from benchbench.documents.run_table import decode_bound
from tests.factories import a_case, a_cost, a_measurement, a_record, a_run
from tests.rendering import rendered
from tests.test_roofline import a_ceiling

DECODE = {"workload": "my_llama_decode", "params": {"batch": 2, "context": 64}}
MEMORY = a_ceiling("memory", 1e10)


def a_decoding_run(*steps_s: float, version: int | str = "own:1", **over: Any) -> Any:
    """A run of one decode step on several backends. Each step reads 10 MB and makes two tokens."""
    cost = a_cost(flops=10**6, bytes=10**7, items=2, item="token")
    records = [
        a_record(
            a_measurement(iterations=1, block_s=(step_s,) * 5, cost=cost, workload_version=version),
            case=a_case(backend=backend, **(DECODE | over)),
            round=number,
        )
        for backend, step_s in zip(("torch", "jax"), steps_s, strict=False)
        for number in range(3)
    ]
    return a_run(records)


def decode_row(step_s: float, ceilings: Any = (MEMORY,), **over: Any) -> Row:
    return rows(a_decoding_run(step_s, **over), ceilings)[0]


def test_the_bound_is_the_rate_at_which_memory_provides_weights_and_cache() -> None:
    """10 GB/s provide 10 MB a thousand times per second, for two tokens each."""
    assert decode_bound(decode_row(0.004)) == pytest.approx(2000)


def test_without_a_ceiling_the_bound_is_not_known() -> None:
    assert decode_bound(decode_row(0.004, ())) is None


def test_other_steps_have_no_bound() -> None:
    assert decode_bound(decode_row(0.004, params={"batch": 2, "prompt": 64})) is None


def test_the_answer_has_tokens_per_second_with_their_interval_and_the_bound() -> None:
    (line,) = [
        line
        for line in answer(a_decoding_run(0.004, 0.008), [MEMORY])
        if "my_llama" in line or "torch" in line
    ]
    assert "torch 500 token/s ±" in line
    assert "25.0 % of the bound 2.00k token/s" in line


def test_a_rate_above_the_bound_is_explained() -> None:
    text = rendered(report_document(a_decoding_run(0.0005, 0.001), ceilings=[MEMORY]))
    assert "2.00k token/s" in text
    assert "faster than its bound: the caches of the CPU hold a part of what a step reads" in text


def test_works_of_accelbench_have_no_tokens_in_their_answer() -> None:
    assert not any("token/s" in line for line in answer(a_decoding_run(0.004, 0.008, version=1), [MEMORY]))
