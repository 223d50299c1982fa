"""Machine ids differ between machines of one type, and contain no names."""

from pathlib import Path

import pytest

from benchbench.machine.environment import machine_id
from tests.machines import tree

KEY = "0123456789abcdef0123456789abcdef"


def an_id(root: Path, key: str = KEY, host: str = "node1", boot: str = "") -> str:
    return machine_id(
        tree(root, {"etc/machine-id": f"{key}\n", "proc/sys/kernel/random/boot_id": boot}), host
    )


def test_a_machine_has_the_same_id_each_time_and_others_have_others(tmp_path: Path) -> None:
    assert an_id(tmp_path) == an_id(tmp_path)
    assert len({an_id(tmp_path), an_id(tmp_path, host="node2"), an_id(tmp_path, key=KEY[::-1])}) == 3


def test_an_id_contains_neither_the_key_nor_the_host(tmp_path: Path) -> None:
    machine_id = an_id(tmp_path, host="beef")
    assert len(machine_id) == 16
    assert int(machine_id, 16)
    assert KEY[:8] not in machine_id


@pytest.mark.parametrize("key", ["", "uninitialized"])
def test_a_container_has_the_id_of_its_machine(tmp_path: Path, key: str) -> None:
    ids = {an_id(tmp_path, key=key, host=host, boot="f3a1-22\n") for host in ("pod1", "pod2")}
    assert len(ids) == 1
    assert an_id(tmp_path, key=key, boot="other") not in ids


def test_a_system_without_an_id_has_none(tmp_path: Path) -> None:
    assert machine_id(tmp_path) == ""
