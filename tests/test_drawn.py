"""The cache of random numbers and references of a run."""

from pathlib import Path

import numpy as np
import pytest

from benchbench.launch.local import RunScratch
from benchbench.model.case import Dtype
from benchbench.model.device import Target
from benchbench.model.placement import Placement, Strategy
from benchbench.model.run import Settings
from benchbench.registry import DRAWN
from benchbench.worker.random_cache import MAX_SIZE, cached_normal, cached_result
from benchbench.worker.reference import reference, training_reference
from benchbench.workloads.draw import standard_normal
from benchbench.workloads.networks.decoders import Gpt2Train

KEY = (1, 2)
NORMAL = standard_normal(KEY, (5,), np.float32)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(DRAWN, str(tmp_path))
    return tmp_path


def test_numbers_are_read_the_second_time(folder: Path) -> None:
    cached_normal(KEY, (2,), np.float32)
    (path,) = folder.iterdir()
    np.save(path, np.array([7, 8], np.float32))
    assert cached_normal(KEY, (2,), np.float32).tolist() == [7, 8]


def test_each_key_shape_and_type_has_its_own_file(folder: Path) -> None:
    for key, shape, real in [
        (KEY, (6,), np.float32),
        (KEY, (6,), np.float64),
        (KEY, (2, 3), np.float32),
        (KEY, (), np.float32),
        ((1, 3), (6,), np.float32),
        ((2, 2), (6,), np.float32),
    ]:
        for _ in range(2):
            numbers = cached_normal(key, shape, real)
            np.testing.assert_array_equal(numbers, standard_normal(key, shape, real))
            assert numbers.dtype == real
            numbers *= 2  # a copy, which a builder may change
    assert len(list(folder.iterdir())) == 6


@pytest.mark.parametrize("content", [b"", b"no array", b"\x93NUMPY\x01\x00"])
def test_a_damaged_file_is_drawn_again(folder: Path, content: bytes) -> None:
    cached_normal(KEY, (5,), np.float32)
    (path,) = folder.iterdir()
    path.write_bytes(content)
    np.testing.assert_array_equal(cached_normal(KEY, (5,), np.float32), NORMAL)
    assert np.load(path).shape == (5,)


def test_a_result_is_computed_once_and_again_if_its_file_is_damaged(folder: Path) -> None:
    computed = []

    def compute(name: str) -> dict[str, float]:
        computed.append(name)
        return {"value": 0.1 + len(name)}

    def result(name: str) -> dict[str, float]:
        return cached_result(name, lambda: compute(name))

    assert [result("a"), result("bc"), result("a")] == [{"value": 1.1}, {"value": 2.1}, {"value": 1.1}]
    assert computed == ["a", "bc"]
    for path in folder.iterdir():
        path.write_bytes(b"{")
    assert result("a") == {"value": 1.1}
    assert computed == ["a", "bc", "a"]


def test_a_result_without_a_run_is_not_cached(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DRAWN, str(folder / "gone"))
    np.testing.assert_array_equal(cached_normal(KEY, (5,), np.float32), NORMAL)
    monkeypatch.delenv(DRAWN)
    assert cached_result("a", lambda: {"value": 1}) == {"value": 1}
    assert cached_result("a", lambda: {"value": 2}) == {"value": 2}
    assert not list(folder.iterdir())


def test_only_small_arrays_of_a_run_are_cached(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached_normal(KEY, (MAX_SIZE + 1,), np.float32)
    monkeypatch.delenv(DRAWN)
    cached_normal(KEY, (5,), np.float32)
    assert not list(folder.iterdir())


def test_a_run_creates_and_removes_its_cache() -> None:
    scratch = RunScratch()
    target = Target(name="fake", backend="fake", python="python3")
    path = Path(scratch.environment(target, Settings(threads=1))[DRAWN])
    assert path.is_dir()
    scratch.close()
    assert not path.exists()


@pytest.mark.real
def test_strategies_of_a_network_share_a_reference_unless_replicas_differ(folder: Path) -> None:
    strategies = (Strategy.DATA_PARALLEL, Strategy.FULLY_SHARDED, Strategy.TENSOR_PARALLEL)
    works = [Gpt2Train().divided(Placement(devices=2, strategy=strategy)) for strategy in strategies]
    (first_reference, *other_references) = [reference(work, Dtype.FLOAT32) for work in works]
    assert [reference_of_other == first_reference for reference_of_other in other_references] == [True, True]
    assert len(list(folder.glob("*.json"))) == 1
    (first, *remaining) = [training_reference(work.small(), Dtype.FLOAT32) for work in works[:2]]
    assert remaining == [first]
    reference(works[0].divided(works[0].placement, replicas=2), Dtype.FLOAT32)
    assert len(list(folder.glob("*.json"))) == 2
