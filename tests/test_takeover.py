"""Other users of this machine who prepare the files that a launched rank looks for."""

import dataclasses
import hmac
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from benchbench.backends import fake
from benchbench.errors import UsageError
from benchbench.launch import joining, launched
from benchbench.model.run import Settings
from benchbench.wire import MAX_MESSAGE_BYTES

STRANGER, VICTIM = 64_123, 64_124  # user ids without accounts
PARENT = 7  # the launcher's process
VARIABLES = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}
SECRET = "0123456789abcdef"

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="only root can be other users"),
    pytest.mark.filterwarnings("ignore:os.fork"),
]


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user can write to, as /tmp is."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o1777)
        yield Path(name)


def as_user(user: int, act: Callable[[], Any]) -> int:
    """The id of a process of that user that runs `act` and ends with code 0."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        os.umask(0)
        act()
        code = 0
    finally:
        os._exit(code)


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def orders(program: Path) -> bytes:
    """The message with which a first process has a worker started."""
    target = {"name": "fake", "backend": "fake", "python": str(program)}
    start = {
        "do": "start",
        "worker": 0,
        "target": target,
        "environment": {},
        "threads": 0,
        "settings": dataclasses.asdict(Settings(threads=1)),
        "same_python": False,
    }
    return json.dumps(start).encode() + b"\n"


def command(listener: socket.socket, program: Path, secret: str) -> None:
    """Listen at a port as the first process would, and order clients to run a program."""
    listener.settimeout(5.0)
    with suppress(TimeoutError):
        while True:
            connection, _ = listener.accept()
            connection.settimeout(0.5)
            with connection, suppress(OSError, ValueError):
                connection.sendall(b'{"nonce": "x"}\n')
                theirs = json.loads(connection.recv(MAX_MESSAGE_BYTES).splitlines()[0])
                message = json.dumps(["admits", "x", theirs.get("nonce", "")]).encode()
                proof = hmac.new(secret.encode(), message, "sha256").hexdigest()
                connection.sendall(json.dumps({"proof": proof}).encode() + b"\n")
                connection.sendall(orders(program))
                connection.recv(MAX_MESSAGE_BYTES)
                connection.recv(MAX_MESSAGE_BYTES)


def announcement(port: int) -> str:
    """The message of this version, and of earlier ones."""
    return json.dumps({"port": port, "secret": SECRET, "token": SECRET})


def in_a_folder(shared: Path, port: int) -> None:
    folder = shared / f"accelbench-{VICTIM}"
    folder.mkdir(mode=0o777)
    (folder / f"ranks-{PARENT}.json").write_text(announcement(port))


def in_a_folder_that_it_closed(shared: Path, port: int) -> None:
    in_a_folder(shared, port)
    (shared / f"accelbench-{VICTIM}").chmod(0o711)


def behind_a_link(shared: Path, port: int) -> None:
    (shared / "elsewhere").mkdir()
    (shared / "elsewhere" / f"ranks-{PARENT}.json").write_text(announcement(port))
    (shared / f"accelbench-{VICTIM}").symlink_to(shared / "elsewhere")


def in_a_file_where_it_was(shared: Path, port: int) -> None:
    (shared / f"accelbench-ranks-{VICTIM}-{PARENT}.json").write_text(announcement(port))


def in_a_folder_left_open(shared: Path, port: int) -> None:
    """A folder that the victim made."""
    (shared / f"accelbench-{VICTIM}" / f"ranks-{PARENT}.json").write_text(announcement(port))


def in_a_folder_of_its_own(shared: Path, port: int) -> None:
    """A folder made as a first process of this user makes it."""
    launched.write(shared / f"accelbench-{VICTIM}", f"ranks-{PARENT}.json", announcement(port).encode())


def follow_one_who(
    user: int, announce: Callable[[Path, int], None], shared: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[bool, str]:
    """Whether the rank of the victim ran a program of that user, and its message."""
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    "host".encode("idna")  # import it here: the victim may not read packages installed for root
    ran, program, error_file = shared / "ran", shared / "program", shared / "said"

    def attack() -> None:
        announce(shared, listener.getsockname()[1])
        program.write_text(f"#!/bin/sh\nid -u > {ran}\n")
        program.chmod(0o755)
        command(listener, program, SECRET)

    def follow() -> None:
        try:
            joining.follow(launched.find_launch(VARIABLES, PARENT), timeout_s=1.0)
        except UsageError as error:
            error_file.write_text(f"{error} {error.hint}")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        attacker = as_user(user, attack)
        while not (program.exists() and os.access(program, os.X_OK)):
            time.sleep(0.01)
        ended(as_user(VICTIM, follow))
        os.kill(attacker, signal.SIGKILL)
        ended(attacker)
    return ran.exists(), error_file.read_text() if error_file.exists() else ""


@pytest.mark.real
@pytest.mark.parametrize(
    "announce",
    [in_a_folder, in_a_folder_that_it_closed, behind_a_link, in_a_file_where_it_was, in_a_folder_left_open],
    ids=lambda announce: announce.__name__,
)
def test_other_users_are_not_accepted_as_the_first_process(
    shared: Path, announce: Callable[[Path, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fake
    if announce is in_a_folder_left_open:
        assert ended(as_user(VICTIM, lambda: (shared / f"accelbench-{VICTIM}").mkdir(mode=0o777))) == 0
    ran, message = follow_one_who(STRANGER, announce, shared, monkeypatch)
    assert not ran
    assert "cannot be reached" in message or launched.FOLDER_HINT in message


def test_a_rank_follows_processes_of_its_own_user(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that the attacks on it are real."""
    assert fake
    assert follow_one_who(VICTIM, in_a_folder_of_its_own, shared, monkeypatch) == (True, "")


def test_a_process_on_the_port_of_the_first_one_needs_the_secret(shared: Path) -> None:
    ran, program = shared / "ran", shared / "program"
    program.write_text(f"#!/bin/sh\nid -u > {ran}\n")
    program.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        stranger = as_user(STRANGER, lambda: command(listener, program, "another secret of it"))
        variables = {**VARIABLES, "ACCELBENCH_ADDRESS": f"127.0.0.1:{port}", "ACCELBENCH_SECRET": SECRET}
        with pytest.raises(UsageError, match="does not know the secret"):
            joining.follow(launched.find_launch(variables, PARENT), timeout_s=0.5)
        os.kill(stranger, 9)
        ended(stranger)
    assert not ran.exists()
