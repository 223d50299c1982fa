from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchbench.diagnosis import findings
from benchbench.diagnosis.checks import clocks
from benchbench.diagnosis.checks.base import Host, Level
from benchbench.diagnosis.checks.table import CHECKS
from benchbench.documents.doctor import findings_document
from benchbench.machine.conditions import tolerated_cores
from benchbench.machine.kernel import CPUS, CpuTimes
from tests.machines import FakeNvml, Files, a_host, a_state, some_settings, ticking
from tests.program import accelbench, started
from tests.rendering import on_a_terminal, rendered

DOCUMENT = (
    (Path(__file__).parent.parent / "docs/doctor.md").read_text().partition("\n# What a device can do")[0]
)
CLOCK = "sys/devices/system/clocksource/clocksource0/current_clocksource"
MEMORY = "MemTotal: 16777216 kB\nMemAvailable: {} kB\nSwapTotal: 8388608 kB\nSwapFree: {} kB\n"


def per_cpu(name: str, text: str) -> Files:
    return {f"{CPUS}/cpu{cpu}/{name}": text for cpu in (0, 1)}


def clock_limit(limit: int) -> Files:
    return per_cpu("cpufreq/scaling_max_freq", f"{limit}\n") | per_cpu(
        "cpufreq/cpuinfo_max_freq", "4000000\n"
    )


def used(busy_s: float, steal_s: float = 0.0) -> dict[str, Any]:
    return {"before": CpuTimes(10.0, 1.0), "after": CpuTimes(10.0 + busy_s, 1.0 + steal_s)}


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


SEEN: list[tuple[str, Files, dict[str, Any], str, str]] = [
    ("load", {}, used(0.04), "ok", "others use 0.08 of 2 CPUs"),
    ("load", {}, used(0.05), "warning", "others use 0.10 of 2 CPUs"),
    ("load", {}, used(0.24), "warning", "others use 0.48 of 2 CPUs"),
    ("load", {}, used(0.25), "problem", "others use 0.50 of 2 CPUs"),
    (
        "load",
        {"proc/loadavg": "2.50 1.00 1.00 1/9 9\n"},
        {"busiest": (("cc1", 0.03),)},
        "warning",
        "others use 0.00 of 2 CPUs (cc1 0.03); load average 2.50",
    ),
    ("load", {}, {"after": None}, "unknown", "there is no /proc/stat"),
    ("steal", {}, used(0.0, 0.02), "ok", "the hypervisor withholds 0.04 of 2 CPUs"),
    ("steal", {}, used(0.0, 0.06), "warning", "the hypervisor withholds 0.12 of 2 CPUs"),
    ("steal", {}, used(0.0, 0.60), "problem", "the hypervisor withholds 1.20 of 2 CPUs"),
    ("steal", {}, {"before": None}, "unknown", "there is no /proc/stat"),
    ("CPU quota", quota(2), {}, "ok", "2 CPUs for 2 threads"),
    ("CPU quota", quota(1.5), {}, "problem", "1.5 CPUs for 2 threads"),
    ("CPU quota", {}, {}, "ok", "no quota; 2 threads"),
    ("CPU throttling", throttled(9), {}, "ok", "stopped in 0.900 % of 1000 periods, 2.5 s in all"),
    ("CPU throttling", throttled(10), {}, "warning", "stopped in 1.00 % of 1000 periods, 2.5 s in all"),
    ("CPU throttling", throttled(100), {}, "problem", "stopped in 10.0 % of 1000 periods, 2.5 s in all"),
    ("CPU throttling", {}, {}, "ok", "no quota has been counted"),
    ("CPU governor", per_cpu("cpufreq/scaling_governor", "performance\n"), {}, "ok", "performance"),
    ("CPU governor", per_cpu("cpufreq/scaling_governor", "powersave\n"), {}, "warning", "powersave"),
    (
        "CPU governor",
        {
            f"{CPUS}/cpu0/cpufreq/scaling_governor": "performance\n",
            f"{CPUS}/cpu1/cpufreq/scaling_governor": "schedutil\n",
        },
        {},
        "warning",
        "performance, schedutil",
    ),
    ("CPU governor", {}, {}, "unknown", "not governed by this kernel: the firmware or the host does it"),
    ("CPU turbo", {f"{CPUS}/intel_pstate/no_turbo": "1\n"}, {}, "ok", "off"),
    ("CPU turbo", {f"{CPUS}/intel_pstate/no_turbo": "0\n"}, {}, "warning", "on"),
    ("CPU turbo", {f"{CPUS}/cpufreq/boost": "0\n"}, {}, "ok", "off"),
    ("CPU turbo", {f"{CPUS}/cpufreq/boost": "1\n"}, {}, "warning", "on"),
    ("CPU turbo", {}, {}, "unknown", "not governed by this kernel: the firmware or the host does it"),
    ("CPU clock limit", clock_limit(4_000_000), {}, "ok", "at most 4000 of 4000 MHz"),
    ("CPU clock limit", clock_limit(2_000_000), {}, "warning", "at most 2000 of 4000 MHz"),
    ("CPU clock limit", {}, {}, "unknown", "not governed by this kernel: the firmware or the host does it"),
    (
        "CPU siblings",
        per_cpu("topology/thread_siblings_list", "0-1\n"),
        {},
        "warning",
        "2 threads on 1 core with 2 CPUs",
    ),
    (
        "CPU siblings",
        per_cpu("topology/thread_siblings_list", "0-1"),
        {"threads": 1},
        "ok",
        "1 thread on 1 core with 2 CPUs",
    ),
    ("CPU siblings", {}, {}, "unknown", "the kernel does not show which CPUs share a core"),
    ("memory nodes", per_cpu("node0/x", ""), {}, "ok", "CPUs on 1 memory node"),
    (
        "memory nodes",
        {f"{CPUS}/cpu0/node0/x": "", f"{CPUS}/cpu1/node1/x": "", "proc/sys/kernel/numa_balancing": "1\n"},
        {},
        "warning",
        "CPUs on 2 memory nodes; pages are moved between them",
    ),
    ("memory nodes", {}, {}, "unknown", "the kernel does not show memory nodes"),
    ("memory", memory(4 * 2**20), {}, "ok", "4.00 GiB of 16.0 GiB available"),
    ("memory", memory(2 * 2**20), {}, "warning", "2.00 GiB of 16.0 GiB available"),
    ("memory", memory(2**18), {}, "problem", "256 MiB of 16.0 GiB available"),
    (
        "memory",
        memory(8 * 2**20) | limited(4 * 2**30, 3 * 2**30),
        {},
        "warning",
        "1.00 GiB of 4.00 GiB available",
    ),
    ("memory", memory(8 * 2**20) | limited(2**30, 2**31), {}, "problem", "0.00 B of 1.00 GiB available"),
    ("memory", {}, {}, "unknown", "there is no /proc/meminfo"),
    ("swap", memory(1), {}, "ok", "0.00 B of 8.00 GiB in use"),
    ("swap", memory(1, 8388608 - 2**20), {}, "warning", "1.00 GiB of 8.00 GiB in use"),
    ("swap", {"proc/meminfo": "SwapTotal: 0 kB\n"}, {}, "ok", "none"),
    ("swap", {}, {}, "unknown", "there is no /proc/meminfo"),
    ("memory pressure", stalled("0.50"), {}, "ok", "tasks waited for memory 0.500 % of the last 10 s"),
    ("memory pressure", stalled("1.00"), {}, "warning", "tasks waited for memory 1.00 % of the last 10 s"),
    ("memory pressure", stalled("25.00"), {}, "problem", "tasks waited for memory 25.0 % of the last 10 s"),
    ("memory pressure", {}, {}, "unknown", "the kernel does not measure pressure (PSI)"),
    ("huge pages", huge("[always] never", "always [madvise]"), {}, "ok", "enabled: always, defrag: madvise"),
    ("huge pages", huge("[always] x", "[always] x"), {}, "warning", "enabled: always, defrag: always"),
    ("huge pages", huge("always [never]", "[always]"), {}, "ok", "enabled: never, defrag: always"),
    ("huge pages", {}, {}, "unknown", "the kernel has no transparent huge pages"),
    ("shared memory", {}, {"shared_bytes": 2 * 2**30}, "ok", "2.00 GiB free in /dev/shm"),
    ("shared memory", {}, {"shared_bytes": 2**29}, "warning", "512 MiB free in /dev/shm"),
    ("shared memory", {}, {"shared_bytes": 2**26}, "problem", "64.0 MiB free in /dev/shm"),
    ("shared memory", {}, {"shared_bytes": None}, "unknown", "there is no /dev/shm"),
    ("temporary folder", {}, {"free_bytes": 2 * 2**30}, "ok", "2.00 GiB free"),
    ("temporary folder", {}, {"free_bytes": 2**29}, "warning", "512 MiB free"),
    ("temporary folder", {}, {"free_bytes": 2**20}, "problem", "1.00 MiB free"),
    ("temporary folder", {}, {"free_bytes": None}, "unknown", "its file system does not tell"),
    ("clock source", {CLOCK: "tsc\n"}, {}, "ok", "tsc"),
    ("clock source", {CLOCK: "hpet\n"}, {}, "warning", "hpet"),
    ("clock source", {CLOCK: "sundial\n"}, {}, "unknown", "sundial: not known to be fast or slow"),
    ("clock source", {}, {}, "unknown", "the kernel does not show it"),
    ("clock resolution", {}, {"clock": ticking(5e-8)}, "ok", "a reading costs 50.0 ns, steps of 50.0 ns"),
    (
        "clock resolution",
        {},
        {"clock": ticking(2e-6)},
        "warning",
        "a reading costs 2.00 µs, steps of 2.00 µs",
    ),
    (
        "clock resolution",
        {},
        {"clock": ticking(1e-3)},
        "problem",
        "a reading costs 1.00 ms, steps of 1.00 ms",
    ),
    ("clock resolution", {}, {"clock": lambda: 1.0}, "problem", "1000 readings were all the same"),
    ("wall clock", {}, {"synchronised": True}, "ok", "synchronised"),
    ("wall clock", {}, {"synchronised": False}, "warning", "not synchronised"),
    ("wall clock", {}, {"synchronised": "nobody knows"}, "unknown", "nobody knows"),
    (
        "CPU counters",
        {"proc/sys/kernel/perf_event_paranoid": "-1\n"},
        {},
        "ok",
        "perf_event_paranoid is -1: for everything",
    ),
    (
        "CPU counters",
        {"proc/sys/kernel/perf_event_paranoid": "2\n"},
        {},
        "ok",
        "perf_event_paranoid is 2: for one's own processes",
    ),
    (
        "CPU counters",
        {"proc/sys/kernel/perf_event_paranoid": "4\n"},
        {},
        "warning",
        "perf_event_paranoid is 4: for root only",
    ),
    ("CPU counters", {}, {}, "unknown", "the kernel has no performance events"),
    ("CPU energy", rapl("energy_uj"), {}, "ok", "1 RAPL packages can be read"),
    ("CPU energy", rapl("energy_uj/x"), {}, "warning", "RAPL counters cannot be read: Is a directory"),
    ("CPU energy", {}, {}, "unknown", "this machine shows no RAPL counters"),
    (
        "GPU counters",
        {"proc/driver/nvidia/params": "A: 1\nRmProfilingAdminOnly: 1\n"},
        {},
        "warning",
        "profiling is for root only",
    ),
    (
        "GPU counters",
        {"proc/driver/nvidia/params": "RmProfilingAdminOnly: 0\n"},
        {},
        "ok",
        "profiling is for everybody",
    ),
    ("GPUs", {}, {}, "unknown", "no NVML: there is no NVIDIA driver"),
    ("GPUs", {}, gpu(), "ok", "0: Example GPU"),
    (
        "GPUs not supported",
        {
            f"sys/class/kfd/kfd/topology/nodes/{node}/gpu_id": f"{gpu_id}\n"
            for node, gpu_id in ((0, 0), (1, 7))
        },
        {},
        "warning",
        "1 of AMD",
    ),
    ("GPU processes", {}, gpu(), "ok", "GPU 0: 0 processes compute on it"),
    ("GPU processes", {}, gpu({"processes": 1}), "warning", "GPU 0: 1 process computes on it: train"),
    ("GPU processes", {}, gpu({"processes": None}), "unknown", "GPU 0: its processes are not shown"),
    ("GPU clocks", {}, gpu(), "ok", "GPU 0: SM clock at most 1980 MHz, now 345, set to 1980"),
    (
        "GPU clocks",
        {},
        gpu(set_sm_mhz=1410),
        "warning",
        "GPU 0: SM clock at most 1980 MHz, now 345, set to 1410",
    ),
    (
        "GPU clocks",
        {},
        gpu({"sm_mhz": None}, set_sm_mhz=None),
        "ok",
        "GPU 0: SM clock at most 1980 MHz",
    ),
    ("GPU clocks", {}, gpu(max_sm_mhz=None), "unknown", "GPU 0: its clocks are not shown"),
    ("GPU power limit", {}, gpu(), "ok", "GPU 0: power limit 700 W of 700 W"),
    ("GPU power limit", {}, gpu(power_limit_w=500.0), "warning", "GPU 0: power limit 500 W of 700 W"),
    ("GPU power limit", {}, gpu(power_limit_w=None), "unknown", "GPU 0: its power limit is not shown"),
    ("GPU heat", {}, gpu(), "ok", "GPU 0: 30 °C; slows itself at 90 °C"),
    ("GPU heat", {}, gpu({"temperature_c": 80}), "warning", "GPU 0: 80 °C; slows itself at 90 °C"),
    (
        "GPU heat",
        {},
        gpu({"reasons": 0x60, "temperature_c": 95}, slowdown_c=None),
        "problem",
        "GPU 0: 95 °C, held back by thermal slowdown",
    ),
    ("GPU heat", {}, gpu({"temperature_c": None}), "unknown", "GPU 0: its temperature is not shown"),
    ("GPU persistence", {}, gpu(), "ok", "GPU 0: persistence mode is on"),
    ("GPU persistence", {}, gpu(persistent=False), "warning", "GPU 0: persistence mode is off"),
    ("GPU slices", {}, gpu(), "ok", "GPU 0: MIG is off"),
    ("GPU slices", {}, gpu(mig=True), "warning", "GPU 0: MIG is on"),
    ("GPU slices", {}, gpu(mig=None), "ok", "GPU 0: it has no MIG"),
    ("GPU ECC", {}, gpu(ecc=False), "ok", "GPU 0: ECC is off"),
]


@pytest.mark.parametrize(
    ("check", "files", "over", "status", "seen"), SEEN, ids=[f"{case[0]}: {case[4]}" for case in SEEN]
)
def test_a_check_tells_what_it_sees_and_how_bad_it_is(
    tmp_path: Path, check: str, files: Files, over: dict[str, Any], status: str, seen: str
) -> None:
    found = [each for each in findings.examine(a_host(tmp_path, files, **over)) if each.check == check]
    assert [(each.status.value, each.seen) for each in found] == [(status, seen)]


def test_every_check_is_tried_above_and_has_an_effect_and_a_remedy() -> None:
    assert {check.name for check in CHECKS} == {case[0] for case in SEEN}
    assert all(check.effect and check.remedy for check in CHECKS)


def test_every_gpu_is_looked_at(tmp_path: Path) -> None:
    nvml = FakeNvml([some_settings(), some_settings(power_limit_w=350.0)])
    found = [
        each for each in findings.examine(a_host(tmp_path, nvml=nvml)) if each.check == "GPU power limit"
    ]
    assert [each.seen.partition(":")[0] for each in found] == ["GPU 1", "GPU 0"]


def test_without_nvml_there_is_one_note(tmp_path: Path) -> None:
    found = findings.examine(a_host(tmp_path, nvml="no NVML: there is no NVIDIA driver"))
    assert [each.check for each in found if "GPU" in each.check] == ["GPUs"]


def test_the_worst_comes_first(tmp_path: Path) -> None:
    host = a_host(tmp_path, quota(1) | {CLOCK: "hpet"}, synchronised="nobody knows")
    order = [each.status for each in findings.examine(host)]
    assert order == sorted(order, key=list(Level).index)
    assert set(order) == set(Level)


def test_a_system_that_tells_nothing_gets_answers_all_the_same(tmp_path: Path) -> None:
    nothing: dict[str, Any] = {"before": None, "after": None, "free_bytes": None, "synchronised": "?"}
    nothing["shared_bytes"] = None
    found = findings.examine(a_host(tmp_path, **nothing))
    assert all(each.seen for each in found)
    assert sum(each.status is Level.UNKNOWN for each in found) >= 15


def test_a_neighbour_may_take_a_tenth_of_a_core_or_a_fiftieth_of_many() -> None:
    assert [tolerated_cores(threads) for threads in (1, 2, 5, 64)] == [0.1, 0.1, 0.1, 1.28]


class Library:
    """A C library whose adjtimex has one answer."""

    def __init__(self, answer: int) -> None:
        self.answer = answer

    def adjtimex(self, buffer: Any) -> int:
        assert bytes(buffer) == bytes(len(buffer))  # modes 0: nothing is to be changed
        assert len(buffer) >= 208
        return self.answer


def no_library(name: None) -> object:
    raise OSError


@pytest.mark.parametrize(
    ("load", "wanted"),
    [
        (lambda _: Library(0), True),
        (lambda _: Library(1), True),  # a leap second is to come
        (lambda _: Library(5), False),
        (lambda _: Library(-1), "adjtimex is not allowed here"),
        (lambda _: SimpleNamespace(), "this system has no adjtimex"),
        (no_library, "this system has no adjtimex"),
    ],
)
def test_the_kernel_says_whether_its_clock_is_synchronised(
    load: Callable[[None], object], wanted: bool | str
) -> None:
    assert clocks.wall_clock(load) == wanted


def here() -> Host:
    return findings.this_host("no NVML: not asked", sleep=lambda _: None)


def test_this_machine_can_be_examined() -> None:
    host = here()
    assert host.threads >= 1
    assert host.cpus
    assert host.free_bytes
    assert {each.check for each in findings.examine(host)} >= {"load", "memory", "clock resolution"}


def test_the_documents_example_is_what_is_shown(tmp_path: Path) -> None:
    files = quota(0.5) | memory(8 * 2**20) | {CLOCK: "hpet"}
    shown = ("load", "CPU quota", "memory", "clock source", "huge pages")
    host = a_host(tmp_path, files, busiest=(("cc1plus", 0.92),), threads=1, **used(0.48))
    found = [each for each in findings.examine(host) if each.check in shown]
    assert f"```\n{on_a_terminal(findings_document(found), 110)}```" in DOCUMENT


def test_the_document_names_every_check_once() -> None:
    assert re.findall(r"^\| ([^|]+?) \|", DOCUMENT, re.MULTILINE)[2:] == [check.name for check in CHECKS]


def test_names_of_processes_cannot_act(tmp_path: Path) -> None:
    host = a_host(tmp_path, busiest=(("\x1b]0;evil[/red]\n", 1.0),))
    shown = rendered(findings_document(findings.examine(host)))
    assert "\x1b" not in shown
    assert "[/red]" in shown


@pytest.mark.real
def test_doctor_is_for_people_and_programs(tmp_path: Path) -> None:
    shown = accelbench("doctor", cwd=tmp_path).stdout
    findings = json.loads(accelbench("doctor", "--format", "json", cwd=tmp_path).stdout)["findings"]
    assert all(each["check"] in shown for each in findings)
    assert set(findings[0]) == {"check", "status", "seen", "value", "unit", "effect", "remedy"}
    assert {each["check"] for each in findings} >= {"load", "swap", "wall clock", "GPUs"}


@pytest.mark.real
def test_strict_fails_when_there_is_a_problem_and_only_then(tmp_path: Path) -> None:
    process = started("doctor", "--strict", "--format", "json", cwd=tmp_path)
    shown, _ = process.communicate(timeout=60)
    problem = any(each["status"] == "problem" for each in json.loads(shown)["findings"])
    assert process.returncode == (4 if problem else 0)
