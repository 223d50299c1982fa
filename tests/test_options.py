"""Options of a measurement: flags, keywords and their values."""

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

import benchbench
from benchbench.cli.options import measure_options
from benchbench.errors import UsageError
from benchbench.model.case import Cache, Dtype
from benchbench.model.options import (
    OPTIONS,
    Allocator,
    Isolation,
    MeasureKeywords,
    MeasureOptions,
    flag_of,
    from_keywords,
)
from benchbench.running import request


def parse(*arguments: str, **selection: Any) -> MeasureOptions:
    """Options that a command gets for these arguments."""
    received: list[MeasureOptions] = []
    app = typer.Typer()

    @app.command()
    @measure_options(**selection)
    def command(*, options: MeasureOptions) -> None:
        received.append(options)

    app(list(arguments), standalone_mode=False)
    (options,) = received
    return options


def test_every_field_has_a_flag_and_a_keyword_and_no_other_does() -> None:
    assert set(OPTIONS) == {"suites", *MeasureKeywords.__annotations__}
    assert set(OPTIONS) == {field.name for field in fields(MeasureOptions)} - {"command"}
    flags = [name for option in OPTIONS.values() for flag in option.flags for name in flag.names]
    assert len(set(flags)) == len(flags)


def test_without_arguments_all_options_have_defaults() -> None:
    assert parse() == MeasureOptions(command=parse().command)
    assert parse().changed_fields == set()
    assert from_keywords((), {}, "f") == MeasureOptions(command=("f",))


def test_arguments_and_keywords_give_the_same_options() -> None:
    typed = parse(
        *("-s", "conv,quick", "-w", "gemm", "-w", "copy", "--phase", "train,forward"),
        *("-b", "torch,jax", "-d", "cpu"),
        *("--model", "mine.py:Net", "--max-error", "1%"),
        *("--input", "mine.npz", "--weights", "as-they-are"),
        *("--python", "torch=/usr/bin/python", "--dtype", "float32", "--mode", "eager"),
        *("-p", "m=1,2", "-p", "causal=true", "--cache", "hot,cold", "--quick", "--rounds", "4"),
        *("--world", "1,2", "--strategy", "data-parallel,pipeline"),
        *("--env", "A=,1", "--env", "B=2"),
        *("--timeout", "7", "--threads", "2", "--allocator", "system", "--isolation", "spawn"),
        *("--seed", "0", "--tag", "branch=main", "--wait-for-idle", "10m"),
    )
    keywords = from_keywords(
        ["conv", "quick"],
        {
            "model": "mine.py:Net",
            "max_error": "1%",
            "input": Path("mine.npz"),
            "weights": "as-they-are",
            "workloads": "gemm, copy",
            "phases": ["train", "forward"],
            "backends": ("torch", "jax"),
            "devices": "cpu",
            "pythons": {"torch": Path("/usr/bin/python")},
            "dtypes": "float32",
            "modes": "eager",
            "params": {"m": [1, 2], "causal": [True]},
            "caches": ["hot", "cold"],
            "worlds": [1, 2],
            "strategies": ["data-parallel", "pipeline"],
            "environment": {"A": ["", "1"], "B": ["2"]},
            "preset": "quick",
            "rounds": 4,
            "timeout_s": 7.0,
            "wait_s": 600.0,
            "threads": 2,
            "allocator": "system",
            "isolation": Isolation.SPAWN,
            "seed": 0,
            "tags": {"branch": "main"},
        },
        "f",
    )
    assert typed.changed_fields == keywords.changed_fields == set(OPTIONS) - {"budget_s"}
    for name in OPTIONS:
        assert getattr(typed, name) == getattr(keywords, name), name
    assert parse("--budget", "2m").budget_s == 120.0


def test_two_presets_exclude_each_other_and_a_budget_excludes_both() -> None:
    with pytest.raises(UsageError, match="--quick and --rigorous exclude each other"):
        parse("--quick", "--rigorous")
    for more in ({"preset": "quick"}, {"rounds": 3}):
        with pytest.raises(UsageError, match="exclude each other"):
            request.request(MeasureOptions(budget_s=9.0, **more))


def test_a_command_accepts_only_its_own_flags() -> None:
    assert parse("-b", "torch", only=("backends", "threads")).backends == ("torch",)
    for selection in ({"only": ("backends",)}, {"without": ("seed",)}):
        with pytest.raises(typer.BadParameter.__mro__[1], match="No such option"):
            parse("--seed", "1", **selection)
    assert flag_of("preset") == "--brief/--quick/--rigorous"


@pytest.mark.real
@given(st.lists(st.text("abc@._", min_size=1, max_size=5), max_size=4))
def test_one_name_and_a_list_of_names_are_equivalent(names: list[str]) -> None:
    many = from_keywords((), {"backends": names}, "f")
    assert many.backends == tuple(names)
    assert parse("--backend", ",".join(names)).backends == many.backends
    for name in names:
        assert from_keywords((), {"backends": name}, "f").backends == (name,)


def test_a_request_converts_names_to_values() -> None:
    measure_request = request.request(
        MeasureOptions(dtypes=("float64",), caches=("cold",), params={"m": 3}, threads=(1,))
    )
    assert measure_request.selection.dtypes == (Dtype.FLOAT64,)
    assert measure_request.selection.caches == (Cache.COLD,)
    assert measure_request.selection.params == {"m": [3]}
    assert measure_request.settings.allocator is Allocator.STEADY


@pytest.mark.parametrize(
    "wrong", [{"allocator": "steedy"}, {"isolation": "frk"}, {"dtypes": ("float31",)}, {"caches": ("warm",)}]
)
def test_an_unknown_name_raises_an_error_with_a_hint(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        request.request(MeasureOptions(**wrong))
    assert caught.value.hint


def test_a_function_accepts_only_its_documented_keywords() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'backend'"):
        benchbench.run(backend="fake")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'seed'"):
        benchbench.devices(seed=1)
    parameters = inspect.signature(benchbench.run).parameters
    assert next(iter(parameters)) == "suite"
    assert {*MeasureKeywords.__annotations__} < set(parameters)
    assert parameters["timeout_s"].default == MeasureOptions().timeout_s
