"""Fuzzing of every reader: it reads nearly valid content or raises an expected error."""

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

FOUND = ROOT / "tests/data/fuzzing"  # content that once caused other errors, a folder per reader
JSONS = [name for name in READERS if name not in ("suite", "config", "fleet")]
HOSTILE: list[Any] = [
    *(None, True, -1, 0, 1, 2**63, 10**29, -0.0, 1e308, 5e-324, 1e29),
    *("", "x", "nan", "\x1b[31m", "../x", [], {}),
    *([1e308, 1e308], [0.0], {"x": 1}, [[]], "9" * 400, "é\u202e😀", "2026-01-01"),
]
EXAMPLES = 60  # for each reader; a study tries more


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to every value inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(inner for key, item in items for inner in paths_in(item, (*path, key)))]


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy with `new` at a path; without the value at that path if `new` is `...`."""
    if not path:
        return None if new is ... else new
    first, remaining = path[0], path[1:]
    if isinstance(value, dict):
        if not remaining and new is ...:
            return {name: item for name, item in value.items() if name != first}
        return value | {first: changed(value[first], remaining, new)}
    inner = [] if not remaining and new is ... else [changed(value[first], remaining, new)]
    return [*value[:first], *inner, *value[first + 1 :]]


@st.composite
def nearly_valid(draw: st.DrawFn, contents: list[bytes]) -> bytes:
    """Valid JSON without a checksum and with a few values changed or removed."""
    value = json.loads(draw(st.sampled_from(contents)))
    for name in ("crc32", "checksums"):
        value.pop(name, None)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(paths_in(value)))
        value = changed(value, path, draw(st.sampled_from([..., *HOSTILE]) | st.floats(0, 1e29)))
        if not isinstance(value, dict):
            break
    return json.dumps(value).encode()


def read(name: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder, suppress(AccelbenchError):
        READERS[name][0](content, Path(folder))


@pytest.mark.parametrize("name", READERS)
def test_valid_content_is_read(name: str, tmp_path: Path) -> None:
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
    def check(content: bytes, place: int, removed: int, new: bytes) -> None:
        place %= len(content) + 1
        read(name, content[:place] + new + content[place + removed :])

    check()


@pytest.mark.parametrize(
    "path", sorted(FOUND.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_content_that_once_caused_other_errors_is_read_or_refused(path: Path) -> None:
    read(path.parent.name, path.read_bytes())
