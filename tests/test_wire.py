"""LineBuffer, messages from untrusted peers, and admission of processes that know the secret."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchbench import wire
from benchbench.wire import LineBuffer, Peer, SecretListener, authenticate, decode_line, next_line

SECRET = "0123456789abcdef"


@given(st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b""))), st.integers(1, 9))
def test_lines_are_read_from_any_fragments(lines_sent: list[bytes], cut: int) -> None:
    stream = b"".join(line + b"\n" for line in lines_sent) + b"rest"
    lines, lines_read = LineBuffer(), []
    for place in range(0, len(stream), cut):
        lines.add(stream[place : place + cut])
        while (line := lines.pop()) is not None:
            lines_read.append(line)
    assert lines_read == lines_sent
    assert not lines.is_empty


def test_a_line_that_is_too_long_is_refused_after_the_lines_before_it() -> None:
    lines = LineBuffer(max_bytes=4)
    for piece in (b"one\nfo", b"ur\nfive!\nsix\n"):
        lines.add(piece)
    assert [lines.pop(), lines.pop()] == [b"one", b"four"]
    for _ in range(2):
        with pytest.raises(ValueError, match="more than 4 bytes"):
            lines.pop()


NOT_MESSAGES = {
    "empty": b"",
    "no JSON": b"{x",
    "a list": b"[1]",
    "a number": b"7",
    "a text": b'"x"',
    "null": b"null",
    "NaN": b'{"x": NaN}',
    "infinity": b'{"x": -Infinity}',
    "a number beyond all floats": b'{"x": 1e999}',
    "a huge integer": b'{"x": ' + b"9" * 31 + b"}",
    "an integer of thousands of digits": b'{"x": ' + b"9" * 9999 + b"}",
    "no UTF-8": b'{"x": "\xff"}',
    "UTF-16": '{"x": 1}'.encode("utf-16"),
    "half a character": b'{"x": "\\ud800"}',
    "half a character in a name": b'{"\\ud800": 1}',
    "deep": b'{"x": ' + b"[" * 70 + b"]" * 70 + b"}",
    "deeper than the interpreter goes": b'{"x":' * 20_000,
}


@pytest.mark.parametrize("line", NOT_MESSAGES.values(), ids=NOT_MESSAGES)
def test_only_json_objects_are_accepted(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_line(line)


def test_a_steady_stream_does_not_extend_the_deadline() -> None:
    here, there = socket.socketpair()
    stop = threading.Event()

    def drip() -> None:
        with suppress(OSError):
            while not stop.is_set():
                there.sendall(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    with pytest.raises(TimeoutError):
        next_line(here, LineBuffer(2**40), time.monotonic() + 0.05)
    stop.set()
    here.close()
    thread.join()
    there.close()


def admit(listener: SecretListener, within_s: float) -> None:
    """Admit a process that knows the secret."""
    thread = guest(listener, SECRET, {"rank": 1})
    peer = listener.accept(within_s)
    assert peer
    assert peer.introduction == {"rank": 1}
    assert peer.lines.is_empty
    peer.connection.close()
    thread.join()


@pytest.fixture
def listener() -> Iterator[SecretListener]:
    with closing(SecretListener(socket.create_server(("127.0.0.1", 0)), SECRET)) as opened:
        yield opened


def guest(listener: SecretListener, secret: str, introduction: dict[str, object]) -> threading.Thread:
    """A client that connects and keeps the connection until it is closed."""

    def come() -> None:
        with suppress(OSError, ValueError), socket.create_connection(listener.address) as connection:
            authenticate(connection, secret, introduction, 5.0)
            connection.recv(1)

    thread = threading.Thread(target=come)
    thread.start()
    return thread


def test_a_line_sent_right_after_an_introduction_is_kept(listener: SecretListener) -> None:
    with socket.create_connection(listener.address) as connection:
        thread = threading.Thread(target=lambda: peers.append(listener.accept(5.0)))
        peers: list[Peer | None] = []
        thread.start()
        authenticate(connection, SECRET, {"rank": 1}, 5.0)
        connection.sendall(b'{"value": 1}\n')
        thread.join()
        (peer,) = peers
        assert peer
        line = next_line(peer.connection, peer.lines, time.monotonic() + 5.0)
        assert line == b'{"value": 1}'
        peer.connection.close()


def test_a_process_without_the_secret_is_rejected(listener: SecretListener) -> None:
    thread = guest(listener, "guessed guessed guessed", {"rank": 1})
    assert listener.accept(0.2) is None
    thread.join()


@pytest.mark.parametrize(
    "sent_first", [b"", b"GET / HTTP/1.1\r\n\r\n", b'{"nonce": 1}\n', b"x" * 100_000, b"[" * 9999 + b"\n"]
)
def test_a_stranger_delays_nobody(listener: SecretListener, sent_first: bytes) -> None:
    """Any number of strangers, silent or not."""
    strangers = [socket.create_connection(listener.address) for _ in range(20)]
    for stranger in strangers:
        with suppress(OSError):
            stranger.sendall(sent_first)
    admit(listener, wire.INTRODUCTION_TIMEOUT_S / 2)  # with one silent stranger, all would be waited for
    for stranger in strangers:
        stranger.close()


def test_strangers_beyond_the_limit_are_rejected(
    listener: SecretListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "MAX_CANDIDATES", 3)
    strangers = [socket.create_connection(listener.address) for _ in range(9)]
    assert listener.accept(0.1) is None
    admit(listener, 2.0)
    closed = 0
    for stranger in strangers:
        stranger.settimeout(0.1)
        with suppress(TimeoutError):
            while piece := stranger.recv(100):
                assert piece
            closed += 1
        stranger.close()
    assert closed >= 6


def test_a_stranger_is_rejected_in_time(listener: SecretListener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "INTRODUCTION_TIMEOUT_S", 0.05)
    with socket.create_connection(listener.address) as stranger:
        assert listener.accept(0.3) is None
        assert json.loads(stranger.recv(100))["nonce"]
        assert not stranger.recv(100)


def test_a_false_listener_without_the_secret_learns_nothing() -> None:
    """A false listener that answers with the challenge it got or with a proof of another secret."""
    with socket.create_server(("127.0.0.1", 0)) as false:

        def wait() -> None:
            for _ in range(2):
                connection, _ = false.accept()
                with connection:
                    connection.sendall(b'{"nonce": "x"}\n')
                    proof = json.loads(connection.recv(4096))["proof"]
                    heard.append(proof)
                    connection.sendall(json.dumps({"proof": proof}).encode() + b"\n")
                    heard.append(connection.recv(4096).decode())

        heard: list[str] = []
        thread = threading.Thread(target=wait)
        thread.start()
        for _ in range(2):
            with (
                socket.create_connection(false.getsockname()) as connection,
                pytest.raises(ValueError, match="does not know the secret"),
            ):
                authenticate(connection, SECRET, {"rank": 1}, 5.0)
        thread.join()
    assert heard[1] == heard[3] == ""  # no introduction
    assert heard[0] != heard[2]  # proofs are not reusable
