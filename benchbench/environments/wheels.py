"""What packages take to fetch and on disk, asked of the servers that have them: no package is fetched."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit
from zipfile import BadZipFile, ZipFile

BARE = 30 * 2**20  # bytes of a virtual environment with pip and nothing else
UNPACKED = 3.0  # bytes on disk for each byte of an archive that does not tell, about
TAILS = (2**17, 2**22)  # bytes at the end of a wheel that hold its table of contents, most of them and all
TIMEOUT_S = 10.0
REQUESTS = 8  # at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One file that pip would install; None where a size is not known."""

    name: str
    version: str
    file: str
    remote: bool
    bytes: int | None
    unpacked_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """What an environment takes."""

    packages: tuple[Package, ...]
    free_bytes: int

    @property
    def remote_bytes(self) -> int:
        """To be fetched, if none of it is in pip's cache."""
        return sum(each.bytes or 0 for each in self.packages if each.remote)

    @property
    def disk_bytes(self) -> int:
        """About what it will take when it is built."""
        known = sum(each.unpacked_bytes or 0 for each in self.packages)
        others = sum(each.bytes or 0 for each in self.packages if each.unpacked_bytes is None)
        return BARE + known + round(UNPACKED * others)

    @property
    def unknown(self) -> int:
        """Packages whose size is not known."""
        return sum(each.bytes is None for each in self.packages)


def measure_packages(reported: Sequence[dict[str, Any]]) -> tuple[Package, ...]:
    """From the `install` of pip's installation report, largest first."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(REQUESTS) as pool:
        found = list(pool.map(_package, reported))
    return tuple(sorted(found, key=lambda each: (-(each.bytes or 0), each.name)))


def _package(reported: dict[str, Any]) -> Package:
    info = reported["download_info"]
    path = unquote(urlsplit(info["url"]).path)
    packed = unpacked = None
    if "archive_info" in info:  # else a folder or a checkout
        with suppress(OSError, ValueError, HTTPException):
            packed = _packed(info["url"])
            unpacked = _unpacked(info["url"], packed) if packed and path.endswith(".whl") else None
    return Package(
        name=reported["metadata"]["name"],
        version=reported["metadata"]["version"],
        file=path.rpartition("/")[2],
        remote=not info["url"].startswith("file:"),
        bytes=packed,
        unpacked_bytes=unpacked,
    )


def _packed(url: str) -> int | None:
    if url.startswith("file:"):
        return Path(unquote(urlsplit(url).path)).stat().st_size
    with _answer(url, "HEAD") as answer:
        length = answer.headers["Content-Length"]
    return int(length) if length and length.isdecimal() else None


def _unpacked(url: str, packed: int) -> int | None:
    if url.startswith("file:"):
        with Path(unquote(urlsplit(url).path)).open("rb") as file:
            return _contents(file)
    for tail in TAILS:
        with _answer(url, "GET", Range=f"bytes={max(packed - tail, 0)}-") as answer:
            if answer.status != 206:  # the whole of it
                return None
            if (found := _contents(BytesIO(answer.read()))) is not None:
                return found
    return None


def _contents(file: BinaryIO) -> int | None:
    """Bytes of the files in a wheel, of which only the end need be there: its table is at the end."""
    try:
        with ZipFile(file) as wheel:
            found = wheel.infolist()
    except BadZipFile:
        return None
    # pip compiles every module; what comes of it is about as large.
    return sum(each.file_size * (2 if each.filename.endswith(".py") else 1) for each in found)


def _answer(url: str, method: str, **headers: str) -> Any:
    from urllib.request import Request, urlopen

    if not url.startswith(("https:", "http:")):
        raise ValueError(f"not asked: {url}")
    request = Request(url, method=method, headers=headers)  # noqa: S310 - checked above
    return urlopen(request, timeout=TIMEOUT_S)  # noqa: S310
