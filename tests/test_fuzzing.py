"""Every reader, given what is nearly right: it reads, or says what is wrong; nothing else ever comes out."""

import json
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from benchbench.errors import AccelbenchError
from tests.readers import READERS
from tests.test_architecture import ROOT

KEPT = ROOT / "tests/data/fuzzing"  # what once ended otherwise, a folder per reader
JSONS = [name for name in READERS if name not in ("suite", "config", "fleet")]
HOSTILE: list[Any] = [
    *(
        None,
        True,
        -1,
        0,
        1,
        2**63,
        10**29,
        -0.0,
        1e308,
        5e-324,
        1e29,
        "",
        "x",
        "nan",
        "\x1b[31m",
        "../x",
        [],
        {},
    ),
    *([1e308, 1e308], [0.0], {"x": 1}, [[]], "9" * 400, "é\u202e😀", "2026-01-01"),
]
EXAMPLES = 60  # of each reader in a test run: seconds; the study has as many as time allows


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value in JSON values."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(place for key, each in items for place in places(each, (*here, key)))]


def changed(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """With `new` in one place; without the place where `new` is `...`."""
    if not place:
        return None if new is ... else new
    first, rest = place[0], place[1:]
    if isinstance(value, dict):
        if not rest and new is ...:
            return {name: each for name, each in value.items() if name != first}
        return value | {first: changed(value[first], rest, new)}
    inner = [] if not rest and new is ... else [changed(value[first], rest, new)]
    return [*value[:first], *inner, *value[first + 1 :]]


@st.composite
def nearly_valid(draw: st.DrawFn, contents: list[bytes]) -> bytes:
    """Valid JSON with a few values changed or gone; its checksum is left out, as old files have none."""
    value = json.loads(draw(st.sampled_from(contents)))
    for name in ("crc32", "checksums"):
        value.pop(name, None)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(places(value)))
        value = changed(value, place, draw(st.sampled_from([..., *HOSTILE]) | st.floats(0, 1e29)))
        if not isinstance(value, dict):
            break
    return json.dumps(value).encode()


def read(name: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder, suppress(AccelbenchError):
        READERS[name][0](content, Path(folder))


@pytest.mark.parametrize("name", READERS)
def test_what_is_valid_is_read(name: str, tmp_path: Path) -> None:
    for number, content in enumerate(READERS[name][1]):
        (tmp_path / str(number)).mkdir()
        READERS[name][0](content, tmp_path / str(number))


@pytest.mark.real
@pytest.mark.parametrize("name", JSONS)
def test_x9_json_with_changed_values_is_read_or_refused(name: str) -> None:
    @settings(max_examples=EXAMPLES, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(nearly_valid(READERS[name][1]))
    def check(content: bytes) -> None:
        read(name, content)

    check()


@pytest.mark.real
@pytest.mark.parametrize("name", READERS)
def test_x9_bytes_changed_at_random_are_read_or_refused(name: str) -> None:
    @settings(max_examples=EXAMPLES, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(READERS[name][1]), st.integers(0), st.integers(0, 9), st.binary(max_size=9))
    @example(b"", 0, 0, b"")
    def check(content: bytes, place: int, gone: int, new: bytes) -> None:
        place %= len(content) + 1
        read(name, content[:place] + new + content[place + gone :])

    check()


@pytest.mark.parametrize("path", sorted(KEPT.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_once_ended_otherwise_is_read_or_refused(path: Path) -> None:
    read(path.parent.name, path.read_bytes())
