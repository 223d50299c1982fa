"""GPUs by NVIDIA's and AMD's libraries, each replaced by a stand-in."""

import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchbench.machine import gpus
from benchbench.machine.environment import amd_gpus
from benchbench.machine.gpus import Nvml
from benchbench.machine.sampler import Watch
from tests.factories import a_case
from tests.machines import FakeNvml, some_settings, tree


class NVMLError(Exception):
    pass


class NVMLError_LibraryNotFound(NVMLError):  # noqa: N801 - its name there
    pass


def refuse(*arguments: Any) -> Any:
    raise NVMLError("Not Supported")


ANSWERS: dict[str, Any] = {
    "GetName": "Example GPU",
    "GetUUID": "GPU-1",
    "GetMaxClockInfo": 1980,
    "GetApplicationsClock": 1755,
    "GetEnforcedPowerLimit": 650_000,
    "GetPowerManagementDefaultLimit": 700_000,
    "GetTemperatureThreshold": 90,
    "GetPersistenceMode": 1,
    "GetMigMode": [0, 0],
    "GetPowerUsage": 312_500,
    "GetTemperature": 61,
    "GetUtilizationRates": types.SimpleNamespace(gpu=87, memory=10),
    "GetComputeRunningProcesses": [types.SimpleNamespace(pid=5), types.SimpleNamespace(pid=6)],
    "GetCurrentClocksEventReasons": 4,
    "GetTotalEnergyConsumption": 1_234_500,
}


def a_module(**over: Any) -> types.SimpleNamespace:
    """A stand-in for `pynvml` with one GPU; `over` has answers, functions or, for None, unsupported calls."""
    functions: dict[str, Any] = {
        "NVMLError": NVMLError,
        "NVMLError_LibraryNotFound": NVMLError_LibraryNotFound,
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "NVML_TEMPERATURE_GPU": 0,
        "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN": 1,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: f"handle {index}",
        "nvmlDeviceGetClockInfo": lambda handle, kind: {1: 1500, 2: 2619}[kind],
        "nvmlSystemGetProcessName": lambda pid: f"/home/somebody/bin/train{pid}",
        "nvmlDeviceGetCurrentClocksThrottleReasons": refuse,
    }

    def answering(value: Any) -> Any:
        return refuse if value is None else value if callable(value) else lambda *arguments: value

    functions |= {f"nvmlDevice{name}": answering(value) for name, value in (ANSWERS | over).items()}
    return types.SimpleNamespace(**functions)


def connected(module: types.SimpleNamespace | None = None, **over: Any) -> gpus.Nvml:
    library = gpus.connect(lambda: module or a_module(**over))
    assert not isinstance(library, str)
    return library


def test_the_state_of_a_gpu_has_the_stored_units() -> None:
    assert connected().state(0) == gpus.GpuState(
        sm_mhz=1500,
        memory_mhz=2619,
        power_w=312.5,
        temperature_c=61,
        reasons=4,
        busy=0.87,
        processes=2,
        energy_j=1234.5,
    )


def test_the_settings_of_a_gpu_have_its_current_modes() -> None:
    assert connected(GetMigMode=[1, 0]).settings(0) == gpus.GpuSettings(
        name="Example GPU",
        uuid="GPU-1",
        max_sm_mhz=1980,
        set_sm_mhz=1755,
        power_limit_w=650.0,
        default_power_limit_w=700.0,
        slowdown_c=90,
        persistent=True,
        mig=True,
    )


def test_unsupported_values_of_a_gpu_are_none() -> None:
    unsupported = dict.fromkeys(ANSWERS)
    state = connected(**unsupported).state(0)
    assert state.sm_mhz == 1500
    assert {state.power_w, state.energy_j, state.reasons, state.busy, state.processes} == {None}
    settings = connected(**unsupported).settings(0)
    assert (settings.name, settings.mig, settings.power_limit_w) == ("", None, None)


def test_a_lost_gpu_does_not_affect_the_others() -> None:
    def handle(index: int) -> str:
        if index == 1:
            raise NVMLError("GPU is lost")
        return f"handle {index}"

    module = a_module()
    module.nvmlDeviceGetCount, module.nvmlDeviceGetHandleByIndex = lambda: 8, handle
    library = connected(module)
    assert [library.settings(index).name for index in range(3)] == ["Example GPU", "", "Example GPU"]
    assert (library.state(0).power_w, library.state(1).power_w) == (312.5, None)
    assert library.process_names(1) == ()


def test_throttle_reasons_of_older_drivers_are_read() -> None:
    old = {"GetCurrentClocksEventReasons": None, "GetCurrentClocksThrottleReasons": 8}
    assert connected(a_module(**old)).state(0).reasons == 8


def test_programs_are_named_without_their_folders() -> None:
    assert connected().process_names(0) == ("train5", "train6")
    assert connected(GetComputeRunningProcesses=None).process_names(0) == ()
    module = a_module()
    module.nvmlSystemGetProcessName = refuse
    assert connected(module).process_names(0) == ("?", "?")


def failing(error: Exception) -> Any:
    """A function that raises the error, whatever its arguments."""

    def fail(*arguments: Any) -> Any:
        raise error

    return fail


def not_starting(error: Exception) -> types.SimpleNamespace:
    return types.SimpleNamespace(**vars(a_module()) | {"nvmlInit": failing(error)})


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (failing(ImportError("No module named 'pynvml'")), "no NVML: nvidia-ml-py is not installed"),
        (lambda: not_starting(NVMLError_LibraryNotFound("x")), "no NVML: there is no NVIDIA driver"),
        (lambda: not_starting(NVMLError("Driver/library mismatch")), "no NVML: Driver/library mismatch"),
        (lambda: a_module(GetCount=None), "no NVML: Not Supported"),
    ],
)
def test_missing_nvml_has_one_reason(load: Any, reason: str) -> None:
    assert gpus.connect(load) == reason


def test_closing_releases_the_driver_and_never_fails() -> None:
    calls: list[str] = []

    def shut_down() -> None:
        calls.append("shutdown")
        refuse()

    module = a_module()
    module.nvmlShutdown = shut_down
    library = connected(module)
    library.close()
    assert calls == ["shutdown"]


def test_the_real_library_has_every_used_name() -> None:
    module = pytest.importorskip("pynvml")
    absent = [name for name in vars(a_module()) if not hasattr(module, name)]
    assert not absent


A, B = some_settings(name="A", uuid="GPU-aaaa"), some_settings(name="B", uuid="GPU-bbbb")
GONE, SLICED = some_settings(name="", uuid=""), some_settings(name="C", uuid="GPU-cccc", mig=True)
PCI = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.parametrize(
    ("device", "installed", "environment", "expected"),
    [
        ("cuda:0", [A], {}, 0),
        ("gpu:1", [A, A], {}, 1),
        ("cuda", [A], {}, 0),
        ("cuda:1", [A, B], PCI, 1),
        ("cuda:0", [A, A, A], {"CUDA_VISIBLE_DEVICES": "2,1"}, 2),
        ("cuda:1", [A, A, A], {"CUDA_VISIBLE_DEVICES": "2, 1"}, 1),
        ("cuda:0", [A, B], {"CUDA_VISIBLE_DEVICES": "GPU-bb"}, 1),
        ("tensorrt:1", [A, A], {}, 1),
        ("cuda:0", [A, GONE, B], {"CUDA_VISIBLE_DEVICES": "GPU-bb"}, 2),
        ("cuda:0", [A, SLICED], {"CUDA_VISIBLE_DEVICES": "GPU-aaaa"}, 0),
        ("tpu:0", [A], {}, "NVML does not know tpu:0"),
        ("cuda:1", [A], {}, "NVML has no GPU that is cuda:1"),
        ("cuda:0", [], {}, "NVML has no GPU that is cuda:0"),
        ("cuda:0", [A], {"CUDA_VISIBLE_DEVICES": ""}, "NVML has no GPU that is cuda:0"),
        ("cuda:1", [A, A], {"CUDA_VISIBLE_DEVICES": "1"}, "NVML has no GPU that is cuda:1"),
        ("cuda:0", [A, B], {}, "without CUDA_DEVICE_ORDER=PCI_BUS_ID"),
        ("cuda:0", [A], {"CUDA_VISIBLE_DEVICES": "MIG-1"}, "not a MIG slice's"),
        ("cuda:0", [SLICED], {}, "not a MIG slice's"),  # as in a container with a single GPU
        ("tensorrt:0", [SLICED], {}, "not a MIG slice's"),
        ("cuda:0", [SLICED, A], {"CUDA_VISIBLE_DEVICES": "GPU-cccc"}, "not a MIG slice's"),
        ("cuda:1", [A, GONE, A], PCI, "the driver has lost one"),
    ],
)
def test_a_device_is_the_gpu_that_cuda_uses_or_has_a_reason(
    device: str, installed: list[gpus.GpuSettings], environment: dict[str, str], expected: int | str
) -> None:
    index = gpus.gpu_index(device, installed, environment)
    assert index == expected if isinstance(expected, int) else expected in str(index)


class AmdSmiException(Exception):
    pass


def refuse_amd(*arguments: Any) -> Any:
    raise AmdSmiException("not supported")


def an_amdsmi(**over: Any) -> SimpleNamespace:
    """MI300X stand-in for `amdsmi` with one GPU; `over` has other functions."""
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
        "amdsmi_get_power_cap_info": lambda handle: {
            "power_cap": 750_000_000,
            "default_power_cap": "N/MI300X",
        },
        "amdsmi_get_power_info": lambda handle: {
            "current_socket_power": "N/MI300X",
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


def connected_amdsmi(**over: Any) -> Nvml:
    library = gpus.connect_to_amd(lambda: an_amdsmi(**over))
    assert not isinstance(library, str)
    return library


def test_state_and_settings_of_a_gpu_are_read() -> None:
    library = connected_amdsmi()
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
    queries = [name for name in vars(an_amdsmi()) if name.startswith("amdsmi_get_") and "handles" not in name]
    library = connected_amdsmi(**dict.fromkeys(queries, refuse_amd))
    state = library.state(0)
    assert {getattr(state, name) for name in state.__slots__} == {None}
    assert library.process_names(0) == ()


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (failing(ModuleNotFoundError()), "amdsmi is not installed"),
        (lambda: an_amdsmi(amdsmi_init=refuse_amd), "amdsmi does not start"),
    ],
)
def test_a_missing_library_is_a_reason(load: Any, reason: str) -> None:
    answer = gpus.connect_to_amd(load)
    assert isinstance(answer, str)
    assert answer.startswith(gpus.AMD_UNKNOWN)
    assert reason in answer


MI300X, OTHER_MI300X = some_settings(name="MI300X", uuid="a"), some_settings(name="MI300X", uuid="b")
MI250X = some_settings(name="MI250X", uuid="c")


@pytest.mark.parametrize(
    ("device", "installed", "environment", "expected"),
    [
        ("rocm:1", [MI300X, OTHER_MI300X], {}, 1),
        ("rocm:0", [MI300X, OTHER_MI300X], {"HIP_VISIBLE_DEVICES": "1"}, 1),
        ("rocm:0", [MI300X, OTHER_MI300X], {"HIP_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "1"}, 1),
        ("rocm:0", [MI300X, OTHER_MI300X], {"CUDA_VISIBLE_DEVICES": "1"}, 1),
        ("rocm:0", [MI300X, OTHER_MI300X], {"ROCR_VISIBLE_DEVICES": "b"}, 1),
        ("rocm:2", [MI300X, OTHER_MI300X], {}, "amdsmi has no GPU that is rocm:2"),
        ("rocm:1", [MI300X], {"HIP_VISIBLE_DEVICES": "0"}, "amdsmi has no GPU that is rocm:1"),
        ("rocm:0", [MI300X, MI250X], {}, "cannot tell which GPU is rocm:0: several kinds are installed"),
    ],
)
def test_a_gpu_is_found_as_hip_numbers_it(
    device: str, installed: list[Any], environment: dict[str, str], expected: int | str
) -> None:
    assert gpus.amd_gpu_index(device, installed, environment) == expected


must_not_be_asked = failing(AssertionError("NVML was connected to"))


def test_a_case_on_rocm_is_watched_by_amdsmi_alone(tmp_path: Path) -> None:
    gpus = FakeNvml([MI300X])
    watch = Watch(1, root=tmp_path, environment={}, connect=must_not_be_asked, connect_to_amd=lambda: gpus)
    sources = watch.sources(a_case(device="rocm:0"))
    assert (sources.nvml, sources.gpu, sources.notes) == (gpus, 0, ())
    watch.close()
    assert gpus.closed


def test_without_amdsmi_a_note_states_what_is_unknown(tmp_path: Path) -> None:
    reason = f"{gpus.AMD_UNKNOWN}: amdsmi is not installed"
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
