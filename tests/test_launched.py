"""Processes of a launcher: rank and size, how ranks find each other, and a run by all of them."""

import dataclasses
import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchbench import api
from benchbench.errors import UsageError
from benchbench.launch import rank_transport
from benchbench.launch.joining import follow, gather_followers
from benchbench.launch.launched import PORT, Launch, check_alone, find_launch, first_host
from benchbench.launch.rank_transport import Group, GroupMember
from benchbench.launch.transport import Answer, Channel, Greeting
from benchbench.meeting import Rank, serve_ranks
from benchbench.model.measurement import Failure, Measurement, Window
from benchbench.running.schedule import shuffled_by_work
from benchbench.running.verification import decode_outcome
from benchbench.store import runs
from benchbench.wire import authenticate
from tests.factories import a_case, a_measurement
from tests.program import environment, wait_for

SHARED = "0123456789abcdef"  # secret for several hosts
VARIABLES = {
    "torchrun": {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "a",
    },
    "srun": {
        "SLURM_PROCID": "3",
        "SLURM_NTASKS": "4",
        "SLURM_LOCALID": "1",
        "SLURM_TASKS_PER_NODE": "2(x2)",
        "SLURM_STEP_NODELIST": "node[07-08]",
    },
    "mpirun": {
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "ACCELBENCH_ADDRESS": "b:5000",
    },
    "mpiexec": {
        "PMI_RANK": "3",
        "PMI_SIZE": "4",
        "MPI_LOCALRANKID": "1",
        "MPI_LOCALNRANKS": "2",
        "MASTER_ADDR": "c",
    },
}
ADDRESSES = {"torchrun": ("a", PORT), "srun": ("node07", PORT), "mpirun": ("b", 5000), "mpiexec": ("c", PORT)}


@pytest.mark.parametrize("launcher", VARIABLES)
def test_rank_size_and_address_are_read_from_every_launcher(launcher: str) -> None:
    launch = find_launch({**VARIABLES[launcher], "ACCELBENCH_SECRET": SHARED}, 7)
    assert (launch.rank, launch.size) == (3, 4)
    assert launch.secret == SHARED
    assert launch.address == ADDRESSES[launcher]


@pytest.mark.parametrize("tasks", ["2(x3),1", "2,1(x2)", "2"])
def test_slurm_lists_the_tasks_of_the_first_node_first(tasks: str) -> None:
    """The first host in this list, as srun(1) describes SLURM_TASKS_PER_NODE."""
    variables = {**VARIABLES["srun"], "SLURM_TASKS_PER_NODE": tasks, "ACCELBENCH_SECRET": SHARED}
    assert find_launch(variables, 7).address == ("node07", PORT)


@pytest.mark.parametrize("secret", [None, "", "short"])
def test_several_hosts_need_a_long_secret(secret: str | None) -> None:
    secret_variables = {} if secret is None else {"ACCELBENCH_SECRET": secret}
    with pytest.raises(UsageError, match="ACCELBENCH_SECRET") as error:
        find_launch({**VARIABLES["srun"], **secret_variables}, 7)
    assert "openssl rand" in error.value.hint


def test_the_port_is_announced_in_a_private_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    variables = {**VARIABLES["mpirun"], "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
    del variables["ACCELBENCH_ADDRESS"]
    launch = find_launch(variables, 7)
    assert launch.address is None
    assert launch.file == tmp_path / f"accelbench-{os.getuid()}" / "ranks-7.json"
    folder = tmp_path / "own"
    folder.mkdir(mode=0o700)
    assert (
        find_launch({**variables, "XDG_RUNTIME_DIR": str(folder)}, 7).file
        == folder / "accelbench/ranks-7.json"
    )
    folder.chmod(0o755)
    (tmp_path / "link").symlink_to(folder)
    for foreign in (folder, tmp_path / "link", tmp_path / "missing", "relative", ""):
        assert find_launch({**variables, "XDG_RUNTIME_DIR": str(foreign)}, 7).file == launch.file


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node[07-09,12],x", "node07"),
        ("a,b", "a"),
        ("rack1-[3]-gpu", "rack1-3-gpu"),
        ("rack[1-2]node[4,6],x", "rack1node4"),
        ("", ""),
        ("only", "only"),
    ],
)
def test_the_first_host_of_slurms_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "No launcher started this"),
        ({"RANK": "0", "WORLD_SIZE": "1"}, "started one process"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "rank 4 of 4"),
        ({"RANK": "x", "WORLD_SIZE": "4"}, "RANK is no number"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "The host of the first process is not known"),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "ACCELBENCH_ADDRESS": "a:b"},
            "The host of the first process is not known",
        ),
    ],
)
def test_unusable_launcher_variables_are_refused(variables: Mapping[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        find_launch(variables, 7)
    assert error.value.hint


def process(tmp_path: Path, rank: int, size: int = 2) -> Launch:
    return Launch(rank=rank, size=size, address=None, file=tmp_path / "ranks.json")


def test_a_command_for_one_process_is_refused_in_two_processes_of_a_host() -> None:
    for environ in ({}, {"LOCAL_WORLD_SIZE": "2"}, {"LOCAL_WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "1"}):
        check_alone(environ)
    with pytest.raises(UsageError, match="torchrun started 2 processes of this command") as refused:
        check_alone({"LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "1"})
    assert "-m benchbench.ranks" in refused.value.hint


def test_a_missing_process_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Ranks that did not connect within 0 s: 1, 2\."):
        gather_followers(process(tmp_path, 0, 3), timeout_s=0.1)


def test_an_absent_first_process_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="The first process cannot be reached"):
        follow(process(tmp_path, 1), timeout_s=0.1)


def test_a_taken_port_is_an_error_with_the_variable_to_set(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = ("127.0.0.1", server.getsockname()[1])
        member = dataclasses.replace(process(tmp_path, 0), address=address, secret=SHARED)
        with pytest.raises(UsageError, match="cannot be listened on") as error:
            gather_followers(member, timeout_s=0.1)
    assert "ACCELBENCH_ADDRESS" in error.value.hint


@pytest.mark.real
def test_the_announcement_is_private_and_strangers_are_refused(tmp_path: Path) -> None:
    first_process = process(tmp_path, 0)
    caught: list[UsageError] = []

    def first() -> None:
        try:
            gather_followers(first_process, timeout_s=1.0)
        except UsageError as error:
            caught.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    while not first_process.file.exists():
        pass
    assert first_process.file.stat().st_mode & 0o077 == 0
    port = json.loads(first_process.file.read_bytes())["port"]
    member = dataclasses.asdict(rank_transport.this_member(process(tmp_path, 1)))
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        with pytest.raises((OSError, ValueError)):
            authenticate(stranger, "guessed", {"member": member}, 5.0)
        thread.join()
    assert "did not connect" in str(caught[0])
    assert (
        not first_process.file.exists()
    )  # a later process of a launcher with the same id would wait in vain


def test_processes_of_other_versions_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = threading.Thread(target=_follow_as, args=(tmp_path, "accelbench 9"))
    thread.start()
    with pytest.raises(UsageError, match="accelbench 9"):
        gather_followers(process(tmp_path, 0), timeout_s=10)
    thread.join()


def _follow_as(tmp_path: Path, version: str) -> None:
    second_process = process(tmp_path, 1)
    while not second_process.file.exists():
        pass
    announcement = json.loads(second_process.file.read_bytes())
    member = dataclasses.asdict(rank_transport.this_member(second_process)) | {"version": version}
    with socket.create_connection(("127.0.0.1", announcement["port"])) as connection:
        authenticate(connection, announcement["secret"], {"member": member}, 5.0)
        connection.recv(1)


def a_group(*members: tuple[str, tuple[int, ...]]) -> Group:
    first, *followers = (GroupMember(rank, host, cores, "1") for rank, (host, cores) in enumerate(members))
    return Group(first.host, first, [rank_transport.Follower(member, None) for member in followers])  # type: ignore[arg-type]


def test_ranks_of_a_host_share_its_cores_unless_their_launcher_bound_them() -> None:
    free = a_group(("a", (0, 1, 2, 3)), ("a", (0, 1, 2, 3)), ("b", (4, 5)))
    assert free.cores == {0: [0, 1], 1: [2, 3], 2: [4, 5]}
    assert not free.oversubscribed
    bound = a_group(("a", (0,)), ("a", (3,)))
    assert bound.cores == {0: [0], 1: [3]}
    few = a_group(("a", (0,)), ("a", (0,)))
    assert few.oversubscribed
    assert (free.hosts, few.hosts) == (2, 1)
    two_hosts = a_group(("a", (0,)), ("b", (0,)))
    assert not two_hosts.oversubscribed  # equal core numbers, on two hosts


def test_hosts_are_numbered_from_the_first_rank_and_may_have_unequal_numbers_of_ranks() -> None:
    cyclic = a_group(("b", (0,)), ("a", (0,)), ("b", (1,)), ("a", (1,)))
    assert [cyclic.host_number(rank) for rank in range(4)] == [0, 1, 0, 1]
    assert cyclic.is_even
    assert not a_group(("a", (0,)), ("a", (1,)), ("a", (2,)), ("b", (0,))).is_even


def test_ranks_that_see_the_same_accelerators_divide_them() -> None:
    """GPUs as torchrun shows them: all to each rank; srun --gpus-per-task shows each rank its own."""

    def devices(*gpus: str) -> list[int]:
        group = a_group(*(("a", (0,)) for _ in gpus))
        members = [
            dataclasses.replace(member, gpus=visible)
            for member, visible in zip(group.members, gpus, strict=True)
        ]
        first, *followers = (rank_transport.Follower(member, None) for member in members)  # type: ignore[arg-type]
        same_group = Group("a", first.member, followers)
        return [same_group.device(rank) for rank in range(len(gpus))]

    assert devices("", "", "") == [0, 1, 2]
    assert devices("0,1", "0,1") == [0, 1]
    assert devices("0", "1") == [0, 0]
    assert devices("0,1", "2,3", "0,1", "2,3") == [0, 0, 1, 1]
    two_hosts = a_group(("a", (0,)), ("b", (0,)), ("a", (1,)))
    assert [two_hosts.device(rank) for rank in range(3)] == [0, 0, 1]


def test_ended_and_silent_processes_get_no_further_request() -> None:
    here, there = socket.socketpair()
    member = GroupMember(1, "a", (0,), "1")
    follower = rank_transport.Follower(member, Channel(here))
    assert not follower.ended
    there.close()
    assert follower.ended
    with pytest.raises(ConnectionError, match="its process has ended"):
        follower.receive(1.0, Greeting)
    follower.send({"do": "close"})
    assert follower.failure == "its process has ended"
    here, there = socket.socketpair()
    silent = rank_transport.Follower(member, Channel(here))
    with pytest.raises(ConnectionError, match="its process sent nothing for 0 s"):
        silent.receive(0.01, Greeting)
    assert not there.recv(1)  # a late answer would be mistaken for the next one
    there.close()


class Unreachable(socket.socket):
    """One end of a connection to a host that has lost its network."""

    def recv(self, size: int, flags: int = 0) -> bytes:
        raise OSError(errno.EHOSTUNREACH, "No route to host")

    def sendall(self, data: Any, flags: int = 0) -> None:
        raise OSError(errno.EHOSTUNREACH, "No route to host")


def test_a_process_on_an_unreachable_host_has_ended() -> None:
    here, there = socket.socketpair()
    follower = rank_transport.Follower(
        GroupMember(1, "a", (0,), "1"), Channel(Unreachable(fileno=here.detach()))
    )
    follower.send({"do": "close"})
    with pytest.raises(ConnectionError, match="its process has ended"):
        follower.receive(1.0, Greeting)
    there.close()


def test_a_rank_on_an_unreachable_host_is_named() -> None:
    here, there = socket.socketpair()
    there.sendall(b"{")  # some bytes can be read
    with Unreachable(fileno=here.detach()) as lost:
        reply = serve_ranks([Rank(0, lost)], time.monotonic() + 5.0)
    there.close()
    assert reply["outcome"]["message"] == "rank 0 of 1: its connection ended"


@pytest.mark.parametrize(("hosts", "is_joint"), [((0, 0), True), ((0, 1), False)])
def test_time_windows_of_different_hosts_are_not_combined(hosts: tuple[int, int], is_joint: bool) -> None:
    windows = [Window(began_s=began, ended_s=began + 1, cpu_s=1.0) for began in (5.0, 90_000.0)]
    ranks = [
        {
            "outcome": dataclasses.asdict(a_measurement(window=window)),
            "stages_s": {},
            "device": "cpu",
            "host": n,
        }
        for n, window in zip(hosts, windows, strict=True)
    ]
    outcome = decode_outcome(Answer({"ranks": ranks}), {})
    assert isinstance(outcome, Measurement)
    assert [rank.host for rank in outcome.ranks] == list(hosts)
    assert [rank.window for rank in outcome.ranks] == windows
    assert (outcome.window is not None) == is_joint


MODULE = [sys.executable, "-m", "benchbench.ranks"]
FAULTS = ("none", "hangs", "wrong")
ENDED_S = 15.0  # ten on a machine with other work


def start(tmp_path: Path, rank: int, *arguments: str) -> subprocess.Popen[str]:
    variables = {"PMI_RANK": str(rank), "PMI_SIZE": "2", "MPI_LOCALRANKID": str(rank), "MPI_LOCALNRANKS": "2"}
    environ = environment(**variables, TMPDIR=str(tmp_path))
    command = [*MODULE, *arguments, "--results", str(tmp_path / "results")]
    return subprocess.Popen(
        command, env=environ, text=True, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def run_of(tmp_path: Path) -> Any:
    (folder,) = (tmp_path / "results" / runs.RUNS).iterdir()
    return runs.read_run(folder)


def assert_ranked(tmp_path: Path) -> None:
    for record in run_of(tmp_path).records:
        assert record.case.id.rpartition("[")[2] == "devices=2,strategy=collective]"
        assert isinstance(record.outcome, Measurement), record.outcome
        assert len(record.outcome.ranks) == 2


@pytest.mark.real
def test_two_processes_make_one_run_and_its_profiles(tmp_path: Path) -> None:
    """The first process keeps the traces: other ranks may be on other hosts."""
    arguments = ["-w", "imbalanced", "-b", "fake", "-d", "cpu", "--quick", "--rounds", "1", "--profile"]
    processes = [start(tmp_path, rank, *arguments) for rank in range(2)]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert "2 processes on 1 host" in outputs[0][1]
    assert_ranked(tmp_path)
    (profile,) = api.profile(results=tmp_path / "results")
    assert [rank.communication_s for rank in profile.ranks] == pytest.approx([3e-3, 2e-3])
    assert [name.rpartition("-")[2].split(".")[1] for name in profile.traces] == ["rank0"]
    assert len([*(tmp_path / "results").rglob("*.trace.json.gz")]) == 1


@pytest.mark.real
def test_a_world_of_another_size_is_refused_by_all_processes(tmp_path: Path) -> None:
    processes = [start(tmp_path, rank, "-b", "fake", "--world", "4") for rank in range(1)]
    (streams,) = (process.communicate(timeout=120) for process in processes)
    assert processes[0].returncode == 2
    assert "the launcher started 2 processes" in streams[1]


def outcomes(tmp_path: Path) -> dict[str, Measurement | Failure]:
    """Outcomes by fault."""
    return {str(record.case.params["fault"]): record.outcome for record in run_of(tmp_path).records}


def faulty(tmp_path: Path, *faults: str, timeout_s: int, seed: int = 0) -> list[subprocess.Popen[str]]:
    """Two processes, the second of which has the fault."""
    arguments = ["-w", "faulty_rank", "-p", f"fault={','.join(faults)}", "-b", "fake", "-d", "cpu", "--quick"]
    arguments += ["--rounds", "1", "--timeout", str(timeout_s), "--seed", str(seed)]
    return [start(tmp_path, rank, *arguments) for rank in range(2)]


@pytest.mark.real  # waits for a time-out
@pytest.mark.xdist_group("launched")
def test_a_faulty_rank_ends_its_case_and_is_named(tmp_path: Path) -> None:
    processes = faulty(tmp_path, "killed", "hangs", "wrong", "late", "garbles", "none", timeout_s=12)
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [4, 0], outputs
    outcomes_by_case = outcomes(tmp_path)
    assert {name: str(outcome.status) for name, outcome in outcomes_by_case.items()} == {
        "killed": "crashed",
        "hangs": "timeout",
        "wrong": "wrong_result",
        "late": "ok",
        "garbles": "failed",
        "none": "ok",
    }
    messages = {
        name: outcome.message for name, outcome in outcomes_by_case.items() if isinstance(outcome, Failure)
    }
    assert messages["killed"] == "rank 1 of 2: killed by signal 9 (SIGKILL)"
    assert messages["hangs"] == "rank 1 of 2 did not come back; the others waited"
    assert messages["wrong"].startswith("rank 1 of 2: relative error ")
    assert messages["garbles"].startswith("rank 1 of 2: what it sent cannot be read: ")
    assert not running_in_or_below(tmp_path)


@pytest.mark.real  # waits for a time-out
@pytest.mark.xdist_group("launched")
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_launched_process_is_named_and_the_other_ends(tmp_path: Path, victim: int) -> None:
    """In the second case, a rank hangs; the third case is not tried for a minute."""
    seed = next(seed for seed in range(99) if order_of(seed) == ["none", "hangs", "wrong"])
    processes = faulty(tmp_path, "none", "hangs", "wrong", timeout_s=60, seed=seed)
    first, survivor = processes[0], processes[1 - victim]
    assert first.stderr
    next(line for line in first.stderr if "fault=none" in line)
    time.sleep(1.0)  # so that the next case has started
    processes[victim].kill()
    killed_s = time.monotonic()
    survivor.communicate(timeout=60)
    assert time.monotonic() - killed_s < ENDED_S
    processes[victim].communicate()
    wait_for(lambda: not running_in_or_below(tmp_path), ENDED_S)
    if victim == 0:
        assert survivor.returncode == 0
        assert outcomes(tmp_path).keys() == {"none"}
    else:
        assert survivor.returncode == 4
        messages = {
            name: outcome.message
            for name, outcome in outcomes(tmp_path).items()
            if isinstance(outcome, Failure)
        }
        assert messages["hangs"] == "rank 1 of 2: its process has ended"
        assert messages["wrong"] == f"rank 1 on {socket.gethostname()}: its process has ended"


def order_of(seed: int) -> list[str]:
    """The faults in the order of the first round."""
    cases = [a_case(workload="faulty_rank", params={"n": 8, "fault": name}) for name in FAULTS]
    return [str(case.params["fault"]) for case in shuffled_by_work(cases, seed, 0)]


def running_in_or_below(folder: Path) -> list[str]:
    """Command lines of processes that run in this folder or use its files."""
    processes = [process.info for process in psutil.process_iter(["cwd", "environ", "cmdline"])]
    return [" ".join(i["cmdline"]) for i in processes if str(folder) in f"{i['cwd']} {i['environ']}"]


TORCH = ["-w", "all_reduce,barrier", "-b", "torch", "-d", "cpu", "-p", "n=1021", "--brief", "--rounds", "1"]
TORCH += ["--profile"]


@pytest.mark.nightly
@pytest.mark.real
@pytest.mark.parametrize(
    "launcher",
    [
        ["torchrun", "--standalone", "--nproc-per-node=2"],
        ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable],
        ["srun", "--ntasks", "2", "--immediate=30", sys.executable],
    ],
    ids=lambda launcher: launcher[0],
)
def test_the_documented_launchers_work(launcher: list[str], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = shutil.which(launcher[0], path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        pytest.skip(f"{launcher[0]} is not installed")
    if launcher[0] == "srun" and subprocess.run(["sinfo"], capture_output=True, check=False).returncode:
        pytest.skip("no Slurm controller answers")
    module = ["-m", "benchbench.ranks", *TORCH, "--results", str(tmp_path / "results")]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.run(
        [program, *launcher[1:], *module], capture_output=True, text=True, cwd=tmp_path, env=env, timeout=300
    )
    assert process.returncode == 0, process.stderr
    assert {record.case.workload for record in run_of(tmp_path).records} == {"all_reduce", "barrier"}
    assert_ranked(tmp_path)
    profiles = api.profile(results=tmp_path / "results")
    assert [len(profile.ranks) for profile in profiles] == [2, 2]
