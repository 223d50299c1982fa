"""The devices that compute a step together: a number of them, or named ones."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import benchbench
from benchbench.backends.fake import Fake
from benchbench.errors import SuiteError, UsageError
from benchbench.model.case import LeftOut, Status
from benchbench.model.device import Device, DeviceClass, Probe
from benchbench.model.measurement import Measurement
from benchbench.model.options import MeasureOptions
from benchbench.model.placement import World
from benchbench.plan.cases import Plan, check_devices, entry_plans, plan, requested_devices
from benchbench.plan.suite import (
    Entry,
    Selection,
    Suite,
    WorldSpec,
    nonadjacent_names,
    parse_suite,
    parse_world,
    select,
)
from benchbench.running.request import request
from tests.factories import CPU, a_probe


def a_device(name: str) -> Device:
    return Device(name=name, device_class=DeviceClass.ACCELERATOR, model="a GPU")


GPUS = [a_device(f"cuda:{number}") for number in range(4)]
PROBE = a_probe("torch", devices=(CPU, *GPUS))


def planned(
    *worlds: int | str, devices: tuple[str, ...] = (), launched: bool = False, probe: Probe = PROBE
) -> Plan:
    entry = Entry(workload="all_reduce", world=list(worlds), cpu=[{"n": 2}], accelerator=[{"n": 8}])
    selection = Selection(devices=devices, launched=launched)
    return plan(select([Suite(description="d", cases=[entry])], selection), selection, [probe])


def ids(result: Plan) -> list[str]:
    return [
        case.id.removeprefix("all_reduce(n=").replace(")/float32/eager@torch", "") for case in result.cases
    ]


def only(left_out: tuple[LeftOut, ...]) -> tuple[str, str, Status]:
    (omission,) = left_out
    return omission.case.device, omission.reason, omission.status


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        (2, WorldSpec(devices=2)),
        ("16", WorldSpec(devices=16)),
        ("cpu", WorldSpec(devices=1, kind="cpu")),
        ("cpu+cpu", WorldSpec(devices=2, kind="cpu")),
        ("cuda:0+cuda:1", WorldSpec(devices=2, names=("cuda:0", "cuda:1"))),
        ("cuda:3", WorldSpec(devices=1, names=("cuda:3",))),
    ],
)
def test_a_world_is_a_number_of_devices_or_their_names(text: int | str, spec: WorldSpec) -> None:
    assert parse_world(text) == spec


NO_WORLDS = "0 -1 2.5 ² 1025 cuda:0+ + 2+2 cpu+cuda:0 cuda+cuda:0 cuda:0+cuda:0 cuda:x cuda: cpu+ :0+:1"


@pytest.mark.parametrize("text", ["", *NO_WORLDS.split()])
def test_an_invalid_world_is_an_error_with_the_valid_forms(text: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_world(text)
    assert "--world" in error.value.hint


def test_consecutive_devices_give_the_case_of_their_number() -> None:
    """The case equals one of --world 2, so that the two are compared."""
    assert ids(planned("cuda:1+cuda:2")) == ids(planned(2, devices=("cuda:1",)))
    assert ids(planned("cpu+cpu")) == ids(planned(2, devices=("cpu",)))
    assert ids(planned("cuda+cuda", 2)) == ["8:cuda:0[devices=2,strategy=collective]"]
    assert ids(planned("cuda:0+cuda:2", "cuda:3+cuda:1")) == [
        "8:cuda:0[devices=2,on=cuda:0+cuda:2,strategy=collective]",
        "8:cuda:3[devices=2,on=cuda:3+cuda:1,strategy=collective]",
    ]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True))
def test_only_nonconsecutive_devices_are_named_in_the_id(numbers: list[int]) -> None:
    names = [f"cuda:{number}" for number in numbers]
    follow = numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert nonadjacent_names(names) == (() if follow else tuple(names))


def test_a_world_with_missing_devices_is_omitted_with_the_reason() -> None:
    device, reason, status = only(planned("cuda:1+cuda:7").left_out)
    assert (device, status) == ("cuda:1", Status.UNAVAILABLE)
    assert reason == "torch has no device 'cuda:7'"
    device, reason, status = only(planned("cuda:8+cuda:9").left_out)
    assert (device, reason) == ("cuda:8", "torch has no device 'cuda:8'")
    absent = a_probe("torch", devices=(), status="unavailable", reason="not installed", remedy="pip install")
    device, reason, status = only(planned("cuda:0+cuda:1", probe=absent).left_out)
    assert (device, reason) == ("cuda:0", "not installed → pip install")


def test_launched_ranks_may_have_devices_hidden_from_the_first() -> None:
    one_gpu = a_probe("torch", devices=(CPU, GPUS[0]))
    assert not planned(4, probe=one_gpu).cases
    assert [case.device for case in planned(4, launched=True, probe=one_gpu).cases] == ["cuda:0"]


def test_aliases_of_a_kind_select_its_devices() -> None:
    tensorflow = a_probe("tensorflow", devices=(CPU, a_device("gpu:0"), a_device("gpu:1"), a_device("gpu:2")))
    (case,) = planned("cuda:0+cuda:2", probe=tensorflow).cases
    assert (case.device, case.placement.names) == ("gpu:0", ("gpu:0", "gpu:2"))


def test_a_device_narrows_a_suite_s_worlds_by_name() -> None:
    assert ids(planned("cuda:0+cuda:2", "cpu+cpu", devices=("cpu",))) == [
        "2:cpu[devices=2,strategy=collective]"
    ]
    assert not planned("cuda:0+cuda:2", devices=("cpu",)).left_out


def test_devices_are_named_once_on_the_command_line() -> None:
    with pytest.raises(UsageError, match="names its devices, and --device names cpu") as error:
        request(MeasureOptions(worlds=("cuda:0+cuda:1",), devices=("cpu",)))
    assert error.value.hint == "Leave --device out."
    assert request(MeasureOptions(worlds=("2",), devices=("cpu",))).selection.worlds == ("2",)


def test_an_unknown_device_kind_is_an_error() -> None:
    entries = [("s", Entry(workload="all_reduce", world=["cadu:0+cadu:1"]))]
    with pytest.raises(UsageError, match="No device named 'cadu:0'"):
        check_devices(requested_devices(entries, ()), [PROBE])


def test_a_suite_can_name_worlds() -> None:
    case = {"workload": "all_reduce", "world": [1, "cuda:0+cuda:2"]}
    suite = parse_suite({"description": "d", "cases": [case]}, Path("mine.toml"))
    assert suite.cases[0].world == [1, "cuda:0+cuda:2"]
    with pytest.raises(SuiteError, match=r"mine\.toml, cases 1: 'a\+b' is neither a number of devices"):
        parse_suite({"description": "d", "cases": [case | {"world": ["a+b"]}]}, Path("mine.toml"))


@pytest.mark.parametrize("world", [2, "cuda:1+cuda:2", "cuda:0+cuda:2", "cpu+cpu"])
def test_an_entry_contains_only_the_cases_it_plans(world: int | str) -> None:
    worlds: list[int | str] = [2, "cuda:1+cuda:2", "cuda:0+cuda:2", "cpu+cpu", 3]
    entry = select(
        [Suite(description="d", cases=[Entry(workload="all_reduce", world=[world])])], Selection()
    )[0][1]
    (single_case,) = (plan([("s", entry)], Selection(), [PROBE])).cases
    assert entry_plans(entry, single_case)
    for other_world in worlds:
        (case,) = planned(other_world).cases
        if case.placement != single_case.placement:
            assert not entry_plans(entry, case)


def test_each_rank_has_the_device_that_is_named_for_it() -> None:
    backend = Fake()
    backend.world = World(rank=1, local=1, devices=2, processes=2, names=("sim:3", "sim:1"))
    assert backend.device_of("sim:3") == "sim:1"
    backend.world = World(rank=1, local=1, devices=2, processes=2)
    assert backend.device_of("sim:2") == "sim:3"
    assert World(devices=2, names=("gpu:0", "gpu:3")).numbers(0) == [0, 3]
    assert World(devices=3).numbers(1) == [1, 2, 3]


@pytest.mark.real
def test_ranks_on_named_devices_are_measured_and_stored_by_name(tmp_path: Path) -> None:
    run = benchbench.run(
        workloads="all_reduce",
        worlds=["sim:0+sim:2", "sim:2+sim:3"],
        backends="fake",
        preset="brief",
        rounds=1,
        results=tmp_path,
    )
    devices = {}
    for record in run.records:
        assert isinstance(record.outcome, Measurement), record.outcome
        devices[record.case.id.partition("@")[2]] = [rank.device for rank in record.outcome.ranks]
    assert devices == {
        "fake:sim:0[devices=2,on=sim:0+sim:2,strategy=collective]": ["sim:0", "sim:2"],
        "fake:sim:2[devices=2,strategy=collective]": ["sim:2", "sim:3"],
    }
