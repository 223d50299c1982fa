"""Checks before measuring: other runs, other programs, and room for results."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from inline_snapshot import snapshot

from benchbench.errors import CannotWrite
from benchbench.machine.kernel import CpuTimes
from benchbench.machine.sampler import Pause, _others, beginning, pause_since
from benchbench.running.measure import Presence, check_space, wait_for_idle, warn_of_disturbances
from benchbench.store import disk
from tests.program import ABSENT, accelbench, records, wait_for

FAKE = ("run", "-b", "fake", "-d", "cpu", "-w", "gemm", "--quick")


def a_pause(cores: float = 0.0, stolen: float = 0.0) -> Pause:
    """Half a second in which other programs used this many of two CPUs."""
    after = CpuTimes(100 + cores / 2, 10 + stolen / 2)
    busiest = (("spin", cores),) if cores else ()
    return Pause(seconds=0.5, cpus=2, before=CpuTimes(100, 10), after=after, busiest=busiest)


QUIET, BUSY, STOLEN = a_pause(), a_pause(1.5), a_pause(stolen=0.4)


class Machine:
    """Scripted looks, the last of them repeated; time passes only in sleep."""

    def __init__(self, presence: Presence, *looks: Pause) -> None:
        self.presence, self._looks, self._last = presence, iter(looks), looks[-1]
        self.now_s = 0.0
        self.messages: list[str] = []

    def look(self) -> Pause:
        return next(self._looks, self._last)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def waits(self, wait_s: float) -> float:
        """The time waited."""
        begin = self.now_s
        report, clock = self.messages.append, lambda: self.now_s
        wait_for_idle(self.presence, wait_s, report, self.look, clock, self.sleep)
        return self.now_s - begin


@pytest.fixture
def presence(tmp_path: Path) -> Iterator[Presence]:
    presence = Presence(tmp_path / "measuring")
    yield presence
    presence.leave()


@pytest.fixture
def second(presence: Presence, tmp_path: Path) -> Iterator[Presence]:
    """Another run of the same user on the same machine, which does not measure yet."""
    second_presence = Presence(tmp_path / "measuring")
    yield second_presence
    second_presence.leave()


@pytest.mark.parametrize(
    ("look", "message"),
    [
        (BUSY, "other programs use 1.50 of 2 CPUs (spin 1.50)"),
        (STOLEN, "the hypervisor withholds 0.40 of 2 CPUs"),
        (QUIET, ""),
    ],
)
def test_disturbances_are_reported_once_without_waiting(
    presence: Presence, look: Pause, message: str
) -> None:
    machine = Machine(presence, look)
    assert machine.waits(0) == 0
    advice = "cases it disturbs will be marked contended; --wait-for-idle 10m waits until it is over"
    assert machine.messages == ([f"{message}: {advice}"] if message else [])


@pytest.mark.parametrize(
    ("since", "now", "count"),
    [
        (QUIET, BUSY, 0),  # nobody else computed during the imports: no further look
        (BUSY, QUIET, 0),  # they have ended
        (BUSY, BUSY, 1),
        (STOLEN, STOLEN, 1),
    ],
)
def test_disturbances_of_imports_are_rechecked(
    presence: Presence, since: Pause, now: Pause, count: int
) -> None:
    lines: list[str] = []
    warn_of_disturbances(presence, beginning(), lines.append, lambda _: since, lambda: now)
    assert len(lines) == count


def test_cpu_time_of_accelbench_itself_does_not_count() -> None:
    pause = Pause(seconds=0.5, cpus=2, before=CpuTimes(100, 10), after=CpuTimes(100.75, 10), own_s=0.7)
    assert pause.cores == pytest.approx(0.1)
    early = Pause(seconds=0.5, cpus=2, before=CpuTimes(100, 10), after=CpuTimes(100.5, 10), own_s=0.51)
    assert early.cores == 0  # the kernel counts in ticks


def test_a_pause_lasts_at_least_half_a_second() -> None:
    slept: list[float] = []
    since = replace(beginning(), at_s=7.0)
    for now in (7.0, 7.125, 9.0):
        pause_since(since, sleep=slept.append, clock=lambda now=now: now)  # type: ignore[misc]
    assert slept == [0.5, 0.375, 0.0]


def test_child_processes_are_not_other_programs() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        pids = {process.pid for process in _others()}
        assert os.getppid() in pids
        assert not {os.getpid(), child.pid} & pids
        child.kill()


def test_a_run_waits_for_three_quiet_looks(presence: Presence) -> None:
    machine = Machine(presence, BUSY, QUIET, QUIET, BUSY, QUIET, QUIET, QUIET, BUSY)
    assert machine.waits(600) == 12
    assert machine.messages == snapshot(
        ["other programs use 1.50 of 2 CPUs (spin 1.50): waiting for up to 10 min 00 s", "idle after 12 s"]
    )


def test_a_run_measures_after_the_longest_wait(presence: Presence) -> None:
    machine = Machine(presence, BUSY)
    assert machine.waits(60) == 60
    assert machine.messages[1:] == [
        "other programs use 1.50 of 2 CPUs (spin 1.50): cases it disturbs will be marked contended"
    ]


def test_a_run_sees_another_that_measures_until_it_ends(presence: Presence, second: Presence) -> None:
    assert presence.enter()
    assert presence.others() == []
    (process,) = second.others()
    assert process > 0
    machine = Machine(second, QUIET)
    assert machine.waits(4) == 4
    assert machine.messages[0] == f"another run is measuring (process {process}): waiting for up to 4 s"
    presence.leave()
    assert second.others() == []
    assert machine.waits(600) == 0


def test_the_second_waiting_run_waits_for_the_first(presence: Presence, second: Presence) -> None:
    assert presence.enter(alone=True)
    assert not second.enter(alone=True)
    assert second.enter()
    assert len(presence.others()) == 1


def test_a_killed_run_is_not_seen(presence: Presence, tmp_path: Path) -> None:
    folder = tmp_path / "measuring"
    program = (
        "import sys; from pathlib import Path; from benchbench.running.measure import Presence\n"
        "presence = Presence(Path(sys.argv[1])); presence.enter(); print('in', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        assert presence.others() == [process.pid]
        process.kill()
    wait_for(lambda: presence.others() == [])
    assert list(folder.iterdir()) == []


def test_without_a_writable_folder_runs_do_not_see_each_other() -> None:
    hidden = Presence(ABSENT / "measuring")
    assert hidden.enter(alone=True)
    assert hidden.others() == []
    hidden.leave()


@pytest.mark.parametrize(
    "arguments", [FAKE, ("compare", "--ab", "mode=eager", "mode=compile", *FAKE[1:])], ids=["run", "compare"]
)
def test_unwritable_results_are_detected_before_measuring(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    process = accelbench(*arguments, "--results", "file/results", cwd=tmp_path, code=6)
    assert "looking for backends" not in process.stderr
    assert f"{tmp_path}/file" in process.stderr


def test_a_missing_folder_has_the_free_space_of_its_parent(tmp_path: Path) -> None:
    assert disk.free_bytes(tmp_path / "a" / "b") == pytest.approx(disk.free_bytes(tmp_path), rel=0.5)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_an_error_and_a_nearly_full_one_a_warning(tmp_path: Path) -> None:
    messages: list[str] = []
    check_space(tmp_path, tmp_path, messages.append, lambda _: 2**30)
    assert messages == []
    check_space(None, tmp_path, messages.append, lambda _: 2**20)
    assert messages == [
        f"{tmp_path}: 1.00 MiB are free, and compile caches are kept there: name another in TMPDIR"
    ]
    with pytest.raises(CannotWrite, match=r"1\.00 MiB are free"):
        check_space(tmp_path, tmp_path, messages.append, lambda _: 2**20)


def test_a_run_of_virtual_time_ignores_other_programs(tmp_path: Path) -> None:
    process = accelbench(*FAKE, cwd=tmp_path)
    assert "contended" not in process.stderr
    assert records(tmp_path)
