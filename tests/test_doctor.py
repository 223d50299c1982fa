import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchbench.diagnosis import checks
from benchbench.diagnosis.checks import CHECKS, Level
from benchbench.documents.doctor import findings_document
from benchbench.machine.kernel import CPUS
from tests.machines import FakeNvml, Files, a_host, a_pause, a_state, some_settings
from tests.program import accelbench, start_accelbench
from tests.rendering import on_a_terminal, rendered

DOCUMENT = (
    (Path(__file__).parent.parent / "docs/doctor.md").read_text().partition("\n# Ceilings of a device")[0]
)
GOVERNOR = "cpufreq/scaling_governor"
TWO_NODES = {f"{CPUS}/cpu{n}/node{n}/x": "" for n in (0, 1)} | {"proc/sys/kernel/numa_balancing": "1\n"}
SCHEDUTIL = {f"{CPUS}/cpu1/{GOVERNOR}": "schedutil\n"}
AMD_GPU = {f"sys/class/kfd/kfd/topology/nodes/{n}/gpu_id": f"{id_}\n" for n, id_ in ((0, 0), (1, 7))}
CUDA_13 = {"cuda-toolkit": "13.0.3", "nvidia-cufft": "12.0.0", "nvidia-cudnn-cu13": "9.24", "torch": "2.14.1"}
CLOCK = "sys/devices/system/clocksource/clocksource0/current_clocksource"
MEMORY = "MemTotal: 16777216 kB\nMemAvailable: {} kB\nSwapTotal: 8388608 kB\nSwapFree: {} kB\n"


def per_cpu(name: str, text: str) -> Files:
    return {f"{CPUS}/cpu{cpu}/{name}": text for cpu in (0, 1)}


def clock_limit(limit: int) -> Files:
    return per_cpu("cpufreq/scaling_max_freq", f"{limit}\n") | per_cpu(
        "cpufreq/cpuinfo_max_freq", "4000000\n"
    )


def used(busy_s: float = 0.0, steal_s: float = 0.0, **over: Any) -> dict[str, Any]:
    return {"pause": a_pause(busy_s, steal_s, **over)}


def gpu(state: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    return {"nvml": FakeNvml([some_settings(**settings)], a_state(**(state or {})), names=("train",))}


def quota(cpus: float) -> Files:
    return {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": f"{int(cpus * 100_000)} 100000\n"}


def throttled(count: int) -> Files:
    stat = f"nr_periods 1000\nnr_throttled {count}\nthrottled_usec 2500000\n"
    return {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.stat": stat}


def memory(available: int, swap_free: int = 8388608) -> Files:
    return {"proc/meminfo": MEMORY.format(available, swap_free)}


def limited(limit: int, current: int) -> Files:
    group = "sys/fs/cgroup/memory"
    return {"proc/self/cgroup": "0::/\n", f"{group}.max": f"{limit}\n", f"{group}.current": f"{current}\n"}


def huge(enabled: str, defrag: str) -> Files:
    folder = "sys/kernel/mm/transparent_hugepage"
    return {f"{folder}/enabled": enabled, f"{folder}/defrag": defrag}


def stalled(percent: str) -> Files:
    return {"proc/pressure/memory": f"some avg10={percent} avg60=0.00 avg300=0.00 total=5\n"}


def rapl(energy: str) -> Files:
    return {
        f"sys/class/powercap/intel-rapl:0/{name}": text
        for name, text in [("name", "package-0"), (energy, "5")]
    }


CHECKED: list[tuple[str, Files, dict[str, Any], str, float | None]] = [
    ("load", {}, used(0.04), "ok", 0.08),
    ("load", {}, used(0.05), "warning", 0.1),
    ("load", {}, used(0.24), "warning", 0.48),
    ("load", {}, used(0.25), "problem", 0.5),
    ("load", {"proc/loadavg": "2.50 1.00 1.00 1/9 9\n"}, used(busiest=(("cc1", 0.03),)), "warning", 0.0),
    ("load", {}, used(after=None), "unknown", None),
    ("steal", {}, used(0.0, 0.02), "ok", 0.04),
    ("steal", {}, used(0.0, 0.06), "warning", 0.12),
    ("steal", {}, used(0.0, 0.6), "problem", 1.2),
    ("steal", {}, used(before=None), "unknown", None),
    ("CPU quota", quota(2), {}, "ok", 2.0),
    ("CPU quota", quota(1.5), {}, "problem", 1.5),
    ("CPU quota", {}, {}, "ok", None),
    ("CPU throttling", throttled(9), {}, "ok", 0.009),
    ("CPU throttling", throttled(10), {}, "warning", 0.01),
    ("CPU throttling", throttled(100), {}, "problem", 0.1),
    ("CPU throttling", {}, {}, "ok", None),
    ("CPU governor", per_cpu(GOVERNOR, "performance\n"), {}, "ok", None),
    ("CPU governor", per_cpu(GOVERNOR, "powersave\n"), {}, "warning", None),
    ("CPU governor", per_cpu(GOVERNOR, "performance\n") | SCHEDUTIL, {}, "warning", None),
    ("CPU governor", {}, {}, "unknown", None),
    ("CPU turbo", {f"{CPUS}/intel_pstate/no_turbo": "1\n"}, {}, "ok", None),
    ("CPU turbo", {f"{CPUS}/intel_pstate/no_turbo": "0\n"}, {}, "warning", None),
    ("CPU turbo", {f"{CPUS}/cpufreq/boost": "0\n"}, {}, "ok", None),
    ("CPU turbo", {f"{CPUS}/cpufreq/boost": "1\n"}, {}, "warning", None),
    ("CPU turbo", {}, {}, "unknown", None),
    ("CPU clock limit", clock_limit(4000000), {}, "ok", 4000.0),
    ("CPU clock limit", clock_limit(2000000), {}, "warning", 2000.0),
    ("CPU clock limit", {}, {}, "unknown", None),
    ("CPU siblings", per_cpu("topology/thread_siblings_list", "0-1\n"), {}, "warning", 1.0),
    ("CPU siblings", per_cpu("topology/thread_siblings_list", "0-1"), {"threads": 1}, "ok", 1.0),
    ("CPU siblings", {}, {}, "unknown", None),
    ("memory nodes", per_cpu("node0/x", ""), {}, "ok", 1.0),
    ("memory nodes", TWO_NODES, {}, "warning", 2.0),
    ("memory nodes", {}, {}, "unknown", None),
    ("memory", memory(4 * 2**20), {}, "ok", 4294967300.0),
    ("memory", memory(2 * 2**20), {}, "warning", 2147483650.0),
    ("memory", memory(2**18), {}, "problem", 268435456.0),
    ("memory", memory(8 * 2**20) | limited(4 * 2**30, 3 * 2**30), {}, "warning", 1073741820.0),
    ("memory", memory(8 * 2**20) | limited(2**30, 2**31), {}, "problem", 0.0),
    ("memory", {}, {}, "unknown", None),
    ("swap", memory(1), {}, "ok", 0.0),
    ("swap", memory(1, 8388608 - 2**20), {}, "warning", 1073741820.0),
    ("swap", {"proc/meminfo": "SwapTotal: 0 kB\n"}, {}, "ok", 0.0),
    ("swap", {}, {}, "unknown", None),
    ("memory pressure", stalled("0.50"), {}, "ok", 0.005),
    ("memory pressure", stalled("1.00"), {}, "warning", 0.01),
    ("memory pressure", stalled("25.00"), {}, "problem", 0.25),
    ("memory pressure", {}, {}, "unknown", None),
    ("huge pages", huge("[always] never", "always [madvise]"), {}, "ok", None),
    ("huge pages", huge("[always] x", "[always] x"), {}, "warning", None),
    ("huge pages", huge("always [never]", "[always]"), {}, "ok", None),
    ("huge pages", {}, {}, "unknown", None),
    ("shared memory", {}, {"shared_bytes": 2 * 2**30}, "ok", 2147483650.0),
    ("shared memory", {}, {"shared_bytes": 2**29}, "warning", 536870912.0),
    ("shared memory", {}, {"shared_bytes": 2**26}, "problem", 67108864.0),
    ("shared memory", {}, {"shared_bytes": None}, "unknown", None),
    ("clock source", {CLOCK: "tsc\n"}, {}, "ok", None),
    ("clock source", {CLOCK: "hpet\n"}, {}, "warning", None),
    ("clock source", {CLOCK: "sundial\n"}, {}, "unknown", None),
    ("clock source", {}, {}, "unknown", None),
    ("CPU energy", rapl("energy_uj"), {}, "ok", 1.0),
    ("CPU energy", rapl("energy_uj/x"), {}, "warning", None),
    ("CPU energy", {}, {}, "unknown", None),
    ("GPUs", {}, {}, "unknown", None),
    ("GPUs", {}, gpu(), "ok", 1.0),
    ("CUDA libraries", {}, {"packages": CUDA_13}, "ok", 1.0),
    ("CUDA libraries", {}, {"packages": CUDA_13 | {"nvidia-cufft-cu12": "11.4"}}, "warning", 2.0),
    ("CUDA libraries", {}, {"packages": CUDA_13 | {"torch": "2.13.0+cu128"}}, "warning", 2.0),
    (
        "CUDA libraries",
        {},
        {"packages": {"jax-cuda12-plugin": "0.9", "nvidia-cublas": "13.1"}},
        "warning",
        2.0,
    ),
    ("AMD GPUs", AMD_GPU, {}, "warning", 1.0),
    ("GPU processes", {}, gpu(), "ok", 0.0),
    ("GPU processes", {}, gpu({"processes": 1}), "warning", 1.0),
    ("GPU processes", {}, gpu({"processes": None}), "unknown", None),
    ("GPU clocks", {}, gpu(), "ok", 1980.0),
    ("GPU clocks", {}, gpu(set_sm_mhz=1410), "warning", 1410.0),
    ("GPU clocks", {}, gpu({"sm_mhz": None}, set_sm_mhz=None), "ok", 1980.0),
    ("GPU clocks", {}, gpu(max_sm_mhz=None), "unknown", None),
    ("GPU power limit", {}, gpu(), "ok", 700.0),
    ("GPU power limit", {}, gpu(power_limit_w=500.0), "warning", 500.0),
    ("GPU power limit", {}, gpu(power_limit_w=None), "unknown", None),
    ("GPU heat", {}, gpu(), "ok", 30.0),
    ("GPU heat", {}, gpu({"temperature_c": 80}), "warning", 80.0),
    ("GPU heat", {}, gpu({"reasons": 96, "temperature_c": 95}, slowdown_c=None), "problem", 95.0),
    ("GPU heat", {}, gpu({"temperature_c": None}), "unknown", None),
    ("GPU persistence", {}, gpu(), "ok", None),
    ("GPU persistence", {}, gpu(persistent=False), "warning", None),
    ("GPU slices", {}, gpu(), "ok", None),
    ("GPU slices", {}, gpu(mig=True), "warning", None),
    ("GPU slices", {}, gpu(mig=None), "ok", None),
]


@pytest.mark.parametrize(
    ("check", "files", "over", "status", "value"),
    CHECKED,
    ids=[f"{check}: {status} {value}" for check, _, _, status, value in CHECKED],
)
def test_a_check_has_a_level_and_a_figure(
    tmp_path: Path, check: str, files: Files, over: dict[str, Any], status: str, value: float | None
) -> None:
    (finding,) = [item for item in checks.examine(a_host(tmp_path, files, **over)) if item.check == check]
    assert (finding.status.value, finding.value) == (status, value if value is None else pytest.approx(value))
    assert finding.seen


def test_every_check_is_tested_and_has_an_effect_and_a_remedy() -> None:
    assert {check.name for check in CHECKS} == {case[0] for case in CHECKED}
    assert all(check.effect and check.remedy for check in CHECKS)


def test_every_gpu_is_examined(tmp_path: Path) -> None:
    nvml = FakeNvml([some_settings(), some_settings(power_limit_w=350.0)])
    of_power_limit = [
        finding
        for finding in checks.examine(a_host(tmp_path, nvml=nvml))
        if finding.check == "GPU power limit"
    ]
    assert [finding.seen.partition(":")[0] for finding in of_power_limit] == ["GPU 1", "GPU 0"]


def test_without_nvml_there_is_one_note(tmp_path: Path) -> None:
    all_findings = checks.examine(a_host(tmp_path, nvml="no NVML: there is no NVIDIA driver"))
    assert [finding.check for finding in all_findings if "GPU" in finding.check] == ["GPUs"]


def test_the_worst_comes_first(tmp_path: Path) -> None:
    host = a_host(tmp_path, quota(1) | {CLOCK: "hpet"})
    order = [finding.status for finding in checks.examine(host)]
    assert order == sorted(order, key=list(Level).index)
    assert set(order) == set(Level)


def test_this_machine_can_be_examined() -> None:
    host = checks.this_host("no NVML: not asked", sleep=lambda _: None)
    assert host.threads >= 1
    assert host.cpus
    assert {finding.check for finding in checks.examine(host)} >= {"load", "memory", "clock source"}


def test_the_documentation_shows_the_actual_output(tmp_path: Path) -> None:
    files = quota(0.5) | memory(8 * 2**20) | {CLOCK: "hpet"}
    names = ("load", "CPU quota", "memory", "clock source", "huge pages")
    host = a_host(tmp_path, files, threads=1, **used(0.48, busiest=(("cc1plus", 0.92),)))
    selected = [finding for finding in checks.examine(host) if finding.check in names]
    assert f"```\n{on_a_terminal(findings_document(selected), 110)}```" in DOCUMENT


def test_the_documentation_lists_every_check() -> None:
    assert re.findall(r"^\| ([^|]+?) \|", DOCUMENT, re.MULTILINE)[2:] == [check.name for check in CHECKS]


def test_escapes_in_names_of_processes_are_neutralised(tmp_path: Path) -> None:
    host = a_host(tmp_path, **used(busiest=(("\x1b]0;evil[/red]\n", 1.0),)))
    text = rendered(findings_document(checks.examine(host)))
    assert "\x1b" not in text
    assert "[/red]" in text


@pytest.mark.real
def test_doctor_prints_text_or_json(tmp_path: Path) -> None:
    text = accelbench("doctor", cwd=tmp_path).stdout
    findings = json.loads(accelbench("doctor", "--format", "json", cwd=tmp_path).stdout)["findings"]
    assert all(finding["check"] in text for finding in findings)
    assert set(findings[0]) == {"check", "status", "seen", "value", "unit", "effect", "remedy"}
    assert {finding["check"] for finding in findings} >= {"load", "swap", "GPUs"}


@pytest.mark.real
def test_strict_fails_only_if_there_is_a_problem(tmp_path: Path) -> None:
    process = start_accelbench("doctor", "--strict", "--format", "json", cwd=tmp_path)
    output, _ = process.communicate(timeout=60)
    problem = any(finding["status"] == "problem" for finding in json.loads(output)["findings"])
    assert process.returncode == (4 if problem else 0)
