"""One definition of what can be asked of a measurement: flags, keywords and what becomes of them."""

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


def read(*arguments: str, **chosen: Any) -> MeasureOptions:
    """What a command is given for these arguments; the command itself does nothing."""
    seen: list[MeasureOptions] = []
    app = typer.Typer()

    @app.command()
    @measure_options(**chosen)
    def command(*, options: MeasureOptions) -> None:
        seen.append(options)

    app(list(arguments), standalone_mode=False)
    (options,) = seen
    return options


def test_every_field_has_a_flag_and_a_keyword_and_no_other_does() -> None:
    assert set(OPTIONS) == {"suites", *MeasureKeywords.__annotations__}
    assert set(OPTIONS) == {each.name for each in fields(MeasureOptions)} - {"command"}
    typed = [name for each in OPTIONS.values() for flag in each.flags for name in flag.names]
    assert len(set(typed)) == len(typed)


def test_nothing_typed_is_nothing_given() -> None:
    assert read() == MeasureOptions(command=read().command)
    assert read().changed_fields == set()
    assert from_keywords((), {}, "f") == MeasureOptions(command=("f",))


def test_what_is_typed_is_what_python_is_given() -> None:
    typed = read(
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
    assert read("--budget", "2m").budget_s == 120.0


def test_two_presets_exclude_each_other_and_a_budget_excludes_both() -> None:
    with pytest.raises(UsageError, match="--quick and --rigorous exclude each other"):
        read("--quick", "--rigorous")
    for more in ({"preset": "quick"}, {"rounds": 3}):
        with pytest.raises(UsageError, match="exclude each other"):
            request.request(MeasureOptions(budget_s=9.0, **more))


def test_a_command_takes_only_the_flags_it_is_for() -> None:
    assert read("-b", "torch", only=("backends", "threads")).backends == ("torch",)
    for chosen in ({"only": ("backends",)}, {"without": ("seed",)}):
        with pytest.raises(typer.BadParameter.__mro__[1], match="No such option"):
            read("--seed", "1", **chosen)
    assert flag_of("preset") == "--brief/--quick/--rigorous"


@pytest.mark.real
@given(st.lists(st.text("abc@._", min_size=1, max_size=5), max_size=4))
def test_one_name_is_as_good_as_several(names: list[str]) -> None:
    many = from_keywords((), {"backends": names}, "f")
    assert many.backends == tuple(names)
    assert read("--backend", ",".join(names)).backends == many.backends
    for name in names:
        assert from_keywords((), {"backends": name}, "f").backends == (name,)


def test_names_become_values_when_a_request_is_made() -> None:
    asked = request.request(
        MeasureOptions(dtypes=("float64",), caches=("cold",), params={"m": 3}, threads=(1,))
    )
    assert asked.selection.dtypes == (Dtype.FLOAT64,)
    assert asked.selection.caches == (Cache.COLD,)
    assert asked.selection.params == {"m": [3]}
    assert asked.settings.allocator is Allocator.STEADY


@pytest.mark.parametrize(
    "wrong", [{"allocator": "steedy"}, {"isolation": "frk"}, {"dtypes": ("float31",)}, {"caches": ("warm",)}]
)
def test_a_name_that_is_not_known_is_a_mistake_with_a_hint(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        request.request(MeasureOptions(**wrong))
    assert caught.value.hint


def test_a_function_takes_the_keywords_it_shows_and_no_other() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'backend'"):
        benchbench.run(backend="fake")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'seed'"):
        benchbench.devices(seed=1)
    shown = inspect.signature(benchbench.run).parameters
    assert next(iter(shown)) == "suite"
    assert {*MeasureKeywords.__annotations__} < set(shown)
    assert shown["timeout_s"].default == MeasureOptions().timeout_s
