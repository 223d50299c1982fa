"""Counters of AMD's GPUs, on a stand-in for the package `amdsmi`."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchbench.machine import amdsmi
from benchbench.machine.environment import amd_gpus
from benchbench.machine.nvml import Nvml
from benchbench.machine.sampler import Watch
from tests.factories import a_case
from tests.machines import FakeNvml, some_settings, tree


class AmdSmiException(Exception):
    pass


def refuse(*arguments: Any) -> Any:
    raise AmdSmiException("not supported")


def a_module(**over: Any) -> SimpleNamespace:
    """A stand-in for `amdsmi` with one GPU; `over` has other functions."""
    functions: dict[str, Any] = {
        "AmdSmiException": AmdSmiException,
        "AmdSmiClkType": SimpleNamespace(GFX="gfx", MEM="mem"),
        "AmdSmiTemperatureType": SimpleNamespace(HOTSPOT="hotspot", EDGE="edge"),
        "AmdSmiTemperatureMetric": SimpleNamespace(CURRENT="current"),
        "amdsmi_init": lambda: None,
        "amdsmi_shut_down": lambda: None,
        "amdsmi_get_processor_handles": lambda: ["handle"],
        "amdsmi_get_gpu_asic_info": lambda handle: {"market_name": "AMD Instinct MI300X"},
        "amdsmi_get_gpu_device_uuid": lambda handle: "uuid-1",
        "amdsmi_get_power_cap_info": lambda handle: {"power_cap": 750_000_000, "default_power_cap": "N/A"},
        "amdsmi_get_power_info": lambda handle: {
            "current_socket_power": "N/A",
            "average_socket_power": 312,
        },
        "amdsmi_get_clock_info": lambda handle, kind: {
            "clk": {"gfx": 2100, "mem": 1300}[kind],
            "max_clk": 2100,
        },
        "amdsmi_get_temp_metric": lambda handle, kind, metric: {"hotspot": 0xFFFF, "edge": 61}[kind],
        "amdsmi_get_gpu_activity": lambda handle: {"gfx_activity": 87},
        "amdsmi_get_gpu_process_list": lambda handle: [{"name": "train", "pid": 5}],
        "amdsmi_get_energy_count": lambda handle: {
            "energy_accumulator": 2_000_000,
            "counter_resolution": 15.3,
        },
    }
    return SimpleNamespace(**(functions | over))


def connected(**over: Any) -> Nvml:
    library = amdsmi.connect(lambda: a_module(**over))
    assert not isinstance(library, str)
    return library


def test_state_and_settings_of_a_gpu_are_read() -> None:
    library = connected()
    settings, state = library.settings(0), library.state(0)
    assert (settings.name, settings.power_limit_w, settings.max_sm_mhz) == (
        "AMD Instinct MI300X",
        750.0,
        2100,
    )
    assert settings.default_power_limit_w is None
    assert (state.sm_mhz, state.memory_mhz, state.power_w, state.temperature_c) == (2100, 1300, 312, 61)
    assert (state.busy, state.processes, state.reasons) == (0.87, 1, None)
    assert state.energy_j == pytest.approx(30.6)
    assert library.process_names(0) == ("train",)
    library.close()


def test_values_that_the_driver_refuses_are_unknown() -> None:
    queries = [name for name in vars(a_module()) if name.startswith("amdsmi_get_") and "handles" not in name]
    library = connected(**dict.fromkeys(queries, refuse))
    state = library.state(0)
    assert {getattr(state, name) for name in state.__slots__} == {None}
    assert library.process_names(0) == ()


def missing() -> Any:
    raise ModuleNotFoundError


@pytest.mark.parametrize(
    ("load", "reason"),
    [(missing, "amdsmi is not installed"), (lambda: a_module(amdsmi_init=refuse), "amdsmi does not start")],
)
def test_a_missing_library_is_a_reason(load: Any, reason: str) -> None:
    answer = amdsmi.connect(load)
    assert isinstance(answer, str)
    assert answer.startswith(amdsmi.UNKNOWN)
    assert reason in answer


A, B = some_settings(name="MI300X", uuid="a"), some_settings(name="MI300X", uuid="b")
OTHER = some_settings(name="MI250X", uuid="c")


@pytest.mark.parametrize(
    ("device", "gpus", "environment", "expected"),
    [
        ("rocm:1", [A, B], {}, 1),
        ("rocm:0", [A, B], {"HIP_VISIBLE_DEVICES": "1"}, 1),
        ("rocm:0", [A, B], {"HIP_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "1"}, 1),
        ("rocm:0", [A, B], {"CUDA_VISIBLE_DEVICES": "1"}, 1),
        ("rocm:0", [A, B], {"ROCR_VISIBLE_DEVICES": "b"}, 1),
        ("rocm:2", [A, B], {}, "amdsmi has no GPU that is rocm:2"),
        ("rocm:1", [A], {"HIP_VISIBLE_DEVICES": "0"}, "amdsmi has no GPU that is rocm:1"),
        ("rocm:0", [A, OTHER], {}, "cannot tell which GPU is rocm:0: several kinds are installed"),
    ],
)
def test_a_gpu_is_found_as_hip_numbers_it(
    device: str, gpus: list[Any], environment: dict[str, str], expected: int | str
) -> None:
    assert amdsmi.gpu_index(device, gpus, environment) == expected


def must_not_be_asked() -> Nvml:
    raise AssertionError("NVML was connected to")


def test_a_case_on_rocm_is_watched_by_amdsmi_alone(tmp_path: Path) -> None:
    gpus = FakeNvml([A])
    watch = Watch(1, root=tmp_path, environment={}, connect=must_not_be_asked, connect_to_amd=lambda: gpus)
    sources = watch.sources(a_case(device="rocm:0"))
    assert (sources.nvml, sources.gpu, sources.notes) == (gpus, 0, ())
    watch.close()
    assert gpus.closed


def test_without_amdsmi_a_note_states_what_is_unknown(tmp_path: Path) -> None:
    reason = f"{amdsmi.UNKNOWN}: amdsmi is not installed"
    watch = Watch(1, root=tmp_path, connect=must_not_be_asked, connect_to_amd=lambda: reason)
    sources = watch.sources(a_case(device="rocm:0"))
    assert (sources.no_energy, [note.text for note in sources.notes]) == (reason, [reason])


def test_amd_gpus_are_part_of_the_machine(tmp_path: Path) -> None:
    nodes = "sys/class/kfd/kfd/topology/nodes"
    versions = {0: 0, 1: 90402, 2: 90010}  # node 0 is a CPU
    files = {
        f"{nodes}/{node}/properties": f"x 1\ngfx_target_version {version}\n"
        for node, version in versions.items()
    }
    assert amd_gpus(tree(tmp_path, files)) == ("AMD gfx942", "AMD gfx90a")
