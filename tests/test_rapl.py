from itertools import accumulate
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from benchbench.machine import kernel
from tests.machines import Files, tree


def zone(name: str, kind: str, energy: int = 0, span: int = 1000) -> Files:
    folder = f"{kernel.RAPL}/{name}"
    return {
        f"{folder}/name": f"{kind}\n",
        f"{folder}/energy_uj": f"{energy}\n",
        f"{folder}/max_energy_range_uj": f"{span}\n",
    }


def test_packages_are_counted_once(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        zone("intel-rapl:0", "package-0", 7)
        | zone("intel-rapl:0:0", "core", 5)
        | zone("intel-rapl:1", "package-1", 8)
        | zone("intel-rapl:2", "psys", 99)
        | zone("intel-rapl-mmio:0", "package-0", 7),
    )
    packages = kernel.cpu_packages(root)
    assert not isinstance(packages, str)
    assert [package.range_uj for package in packages] == [1000, 1000]
    assert kernel.read_uj(packages) == (7, 8)


def test_without_counters_there_is_a_reason(tmp_path: Path) -> None:
    assert kernel.cpu_packages(tmp_path) == "this machine shows no RAPL counters"


def test_a_counter_that_may_not_be_read_has_a_reason(tmp_path: Path) -> None:
    root = tree(tmp_path, zone("intel-rapl:0", "package-0"))
    energy = root / kernel.RAPL / "intel-rapl:0/energy_uj"
    energy.unlink()
    energy.mkdir()  # even root cannot read it
    packages = kernel.cpu_packages(root)
    assert isinstance(packages, str)
    assert packages.startswith("RAPL counters cannot be read: ")


def test_a_removed_counter_has_no_value(tmp_path: Path) -> None:
    packages = kernel.cpu_packages(tree(tmp_path, zone("intel-rapl:0", "package-0")))
    assert not isinstance(packages, str)
    packages[0].path.unlink()
    assert kernel.read_uj(packages) is None


def test_a_counter_overflow_is_handled() -> None:
    assert kernel.used_j([(900, 10), (100, 20), (200, 20)], (1000, 1000)) == (0.0, 210e-6, 310e-6)


def test_without_readings_there_is_no_energy() -> None:
    assert kernel.used_j([], (1000,)) == ()


@given(start=st.integers(0, 999), steps=st.lists(st.integers(0, 999)))
def test_energy_is_the_sum_of_steps_wherever_the_counter_starts(start: int, steps: list[int]) -> None:
    counter = list(accumulate(steps, initial=start))
    joules_used = kernel.used_j([(value % 1000,) for value in counter], (1000,))
    assert [round(joules * 1e6) for joules in joules_used] == [value - start for value in counter]
