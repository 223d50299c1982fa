"""Sizes of packages, asked of a server on this machine."""

import random
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchbench.environments.installer import EMPTY_BYTES, UNPACKED, Download, Package, measure_packages
from tests.wheelhouse import wheel


class Server(ThreadingHTTPServer):
    """Serves the files of a folder, whole or in part, and counts the bytes it sends."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ranges = True
        self.sent = 0
        super().__init__(("127.0.0.1", 0), Handler)

    def url(self, path: Path) -> str:
        return f"http://127.0.0.1:{self.server_port}/{path.name}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        path = self.server.folder / Path(self.path).name
        if not path.exists():
            self.send_error(404)
            return
        content, status = path.read_bytes(), 200
        if self.server.ranges and "Range" in self.headers:
            start = self.headers["Range"].removeprefix("bytes=").removesuffix("-")
            content, status = content[int(start) :], 206
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.server.sent += len(content)
            self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server(tmp_path) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))  # stops quickly
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def reported(url: str, kind: str = "archive_info") -> dict[str, Any]:
    return {"metadata": {"name": "big", "version": "1.0"}, "download_info": {"url": url, kind: {}}}


def measure(url: str, kind: str = "archive_info") -> Package:
    (packages,) = measure_packages([reported(url, kind)])
    return packages


@pytest.fixture
def big(tmp_path: Path) -> Path:
    """A wheel with 2 MB of incompressible data and a module of 1000 bytes."""
    data = random.Random(1).randbytes(2_000_000)
    return wheel(tmp_path, "big", "1.0", {"big/data.bin": data, "big/__init__.py": "#" * 1000})


def test_a_wheel_is_measured_without_downloading_it(server: Server, big: Path) -> None:
    package = measure(server.url(big))
    assert package.remote
    assert package.bytes == big.stat().st_size
    assert package.unpacked_bytes is not None
    assert 2_002_000 <= package.unpacked_bytes <= 2_003_000  # the module counts twice, since pip compiles it
    assert server.sent < 200_000


def test_local_and_remote_wheels_have_the_same_sizes(server: Server, big: Path) -> None:
    here, there = measure(big.as_uri()), measure(server.url(big))
    assert (here.bytes, here.unpacked_bytes) == (there.bytes, there.unpacked_bytes)
    assert (here.remote, here.file) == (False, big.name)


def test_a_long_table_of_contents_is_read_completely(server: Server, tmp_path: Path) -> None:
    many = wheel(tmp_path, "many", "1.0", {f"many/{number:0100}": "x" for number in range(2_000)})
    package = measure(server.url(many))
    assert package.unpacked_bytes == measure(many.as_uri()).unpacked_bytes
    assert package.unpacked_bytes is not None
    assert package.unpacked_bytes > 2_000


def test_without_range_requests_the_size_is_estimated(server: Server, big: Path) -> None:
    server.ranges = False
    package = measure(server.url(big))
    assert (package.bytes, package.unpacked_bytes) == (big.stat().st_size, None)
    total = Download(packages=(package,), free_bytes=0)
    assert total.disk_bytes == EMPTY_BYTES + round(UNPACKED * big.stat().st_size)


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("http://127.0.0.1:9/big-1.0-py3-none-any.whl", "archive_info"),  # no server listens there
        ("file:///no/such/big-1.0.whl", "archive_info"),
        ("ftp://127.0.0.1/big-1.0.whl", "archive_info"),
        ("https://127.0.0.1/big.git", "vcs_info"),
        ("file:///", "dir_info"),
    ],
)
@pytest.mark.usefixtures("server")
def test_unreachable_packages_have_unknown_sizes(url: str, kind: str) -> None:
    package = measure(url, kind)
    assert (package.bytes, package.unpacked_bytes) == (None, None)
    total = Download(packages=(package,), free_bytes=0)
    assert (total.unknown, total.remote_bytes, total.disk_bytes) == (1, 0, EMPTY_BYTES)


def test_source_packages_have_the_size_of_their_archive(server: Server, tmp_path: Path) -> None:
    (tmp_path / "big-1.0.tar.gz").write_bytes(b"x" * 100)
    package = measure(server.url(tmp_path / "big-1.0.tar.gz"))
    assert (package.bytes, package.unpacked_bytes) == (100, None)


def test_a_damaged_wheel_has_no_unpacked_size(server: Server, tmp_path: Path) -> None:
    (tmp_path / "big-1.0-py3-none-any.whl").write_bytes(b"x" * 300_000)
    package = measure(server.url(tmp_path / "big-1.0-py3-none-any.whl"))
    assert (package.bytes, package.unpacked_bytes) == (300_000, None)


def test_packages_are_sorted_by_size(server: Server, big: Path, tmp_path: Path) -> None:
    small = wheel(tmp_path, "small", "1.0")
    packages = measure_packages([reported(server.url(small)), reported(server.url(big))])
    assert [package.file for package in packages] == [big.name, small.name]
