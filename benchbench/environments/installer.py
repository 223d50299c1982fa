"""A virtual environment and its pip: what it would fetch, how large, which build of torch; then fetching."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit
from zipfile import BadZipFile, ZipFile

import msgspec

from benchbench.environments import interpreters
from benchbench.errors import CannotBuild, CannotWrite, UsageError
from benchbench.format import size
from benchbench.machine.environment import CACHE

Tell = Callable[[str], None]
LOG, SCRATCH = "pip.log", "tmp"
RESOLVING_PIP = "pip>=25.3"  # older ones fetch every wheel to say what they would fetch (pypa/pip#13482)
NO_WHEELS = "--use-feature=fast-deps"  # metadata by range requests where the index does not serve them
FEW_RETRIES = ("--retries", "1")  # an index that does not answer is asked for every package
POLL_S, GRACE_S = 0.3, 5.0
QUOTED, WIDTH = 12, 200  # lines of the log in an error, and characters of one
ELSEWHERE = ("PIP_PYTHON", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER")  # would install outside
BARE = 30 * 2**20  # bytes of a virtual environment with pip and nothing else
UNPACKED = 3.0  # bytes on disk for each byte of an archive that does not tell, about
TAILS = (2**17, 2**22)  # bytes at the end of a wheel that hold its table of contents, most of them and all
TIMEOUT_S = 10.0
REQUESTS = 8  # at a time
INDEX = "https://download.pytorch.org/whl"  # pytorch.org/get-started: a folder per build
GENERAL = "cuda"  # the build of the general index
BUILD = re.compile(rf"cpu|{GENERAL}|cu[0-9]{{3}}|rocm[0-9]+(\.[0-9]+)+|xpu")


@dataclass(frozen=True, slots=True)
class Site:
    """The folder an environment is built in, the descriptor of its lock, and whether the folder stays."""

    folder: Path
    lock: int
    kept: bool

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(interpreters.interpreter_in(self.folder))

    @property
    def log(self) -> Path:
        """What venv and pip said."""
        return self.folder / LOG


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


def resolve(site: Site, base: str, requirements: Sequence[str], variant: str, tell: Tell) -> Download:
    """Make the virtual environment, if it is not there, and ask its pip what it would install.

    `variant`: the build of torch to look for. Raises CannotBuild.
    """
    if not os.path.exists(made := site.folder / SCRATCH / "made"):
        tell(f"making a virtual environment of {base}")
        venv = [base, "-I", "-m", "venv", str(site.folder)]
        _must(site, venv, "venv failed", "On Debian and Ubuntu venv needs the package python3-venv.")
        _run(site, [*_pip(site), "install", "--upgrade", "--quiet", RESOLVING_PIP])  # without it: slower
        made.touch()
    tell(f"asking pip what {' '.join(requirements)} takes")
    report = site.folder / SCRATCH / "report.json"
    asked = [*_pip(site), "install", "--dry-run", "--report", str(report)]
    options = pip_options(variant)
    wanted = [*options, *(FEW_RETRIES if options else ()), "--", *requirements]
    if _run(site, [*asked, NO_WHEELS, *wanted]) != 0:
        _must(site, [*asked, *wanted], "pip finds no way to install that", _other(site))
    found = measure_packages(msgspec.json.decode(report.read_bytes())["install"])
    folder = interpreters.environments_folder()
    there = next(each for each in (folder, *folder.parents) if os.path.exists(each))
    return Download(packages=found, free_bytes=shutil.disk_usage(there).free)


def check_room(download: Download) -> None:
    """Raises CannotWrite where it would not fit: wheels and what is unpacked from them are there together."""
    needed = download.disk_bytes + download.remote_bytes
    if needed > download.free_bytes:
        hint = f"Free space there, or set {CACHE} to a folder with more."
        short = f"It needs about {size(needed)} while it is built, {size(download.free_bytes)} are free"
        raise CannotWrite(f"{short} in {interpreters.environments_folder()}.", hint)


def install(site: Site, requirements: Sequence[str], variant: str, download: Download, tell: Tell) -> None:
    """Have pip install it, telling how far it is. Raises CannotBuild."""
    before, told = _distributions(site), ""

    def watch() -> None:
        nonlocal told
        if (now := _stage(site, before, download)) != told:
            told = now
            tell(now)

    command = [*_pip(site), "install", *pip_options(variant), "--", *requirements]
    _must(site, command, "pip failed to install that", _other(site), watch)


def installed(site: Site) -> tuple[dict[str, str], tuple[str, ...]]:
    """Name → version, and the names of those that were asked for."""
    done = subprocess.run([*_pip(site), "inspect"], capture_output=True, env=_environment(site))
    try:
        found = msgspec.json.decode(done.stdout)["installed"]
    except (ValueError, KeyError) as error:
        raise CannotBuild("pip does not say what it has installed.", _other(site)) from error
    packages = {each["metadata"]["name"]: each["metadata"]["version"] for each in found}
    asked = [each["metadata"]["name"] for each in found if each.get("requested")]
    return dict(sorted(packages.items())), tuple(sorted(set(asked) - {"pip", "setuptools"}))


def _pip(site: Site) -> list[str]:
    """-I: nothing of this program's environment is on its path."""
    return [site.python, "-I", "-m", "pip", "--no-input", "--disable-pip-version-check", "--no-color"]


def _other(site: Site) -> str:
    whole = f"All it said is in {site.log}. " if site.kept else ""
    return f"{whole}--with takes other versions, --base another Python."


def _must(
    site: Site, command: Sequence[str], failure: str, hint: str, watch: Callable[[], None] = lambda: None
) -> None:
    begin = site.log.stat().st_size if os.path.exists(site.log) else 0
    if _run(site, command, watch) != 0:
        said = site.log.read_bytes()[begin:].decode(errors="replace").splitlines()[-QUOTED:]
        lines = [f"  {line[:WIDTH]}{'…' if len(line) > WIDTH else ''}" for line in said]
        raise CannotBuild(f"{failure}:", hint, lines)


def _run(site: Site, command: Sequence[str], watch: Callable[[], None] = lambda: None) -> int:
    """Its exit code; what it says goes to the log. It is ended if this process is interrupted."""
    process = _started(site, command)
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(POLL_S)
            watch()
    finally:
        _end(process)


def _started(site: Site, command: Sequence[str]) -> subprocess.Popen[bytes]:
    """It inherits the lock, so that nobody builds beside it if it outlives this process."""
    try:
        with site.log.open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=site.folder,
                env=_environment(site),
                pass_fds=[site.lock],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
    except OSError as error:
        raise CannotWrite(
            f"{error.filename or site.folder}: {error.strerror}", "Free space there."
        ) from error


def _environment(site: Site) -> dict[str, str]:
    """Wheels are unpacked beside the environment, not in a /tmp that may be small."""
    kept = {name: value for name, value in os.environ.items() if name.upper() not in ELSEWHERE}
    return kept | {"TMPDIR": str(site.folder / SCRATCH)}


def _end(process: subprocess.Popen[bytes]) -> None:
    for sign in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)


def _stage(site: Site, before: int, download: Download) -> str:
    """How far pip is: it fetches everything, then unpacks. `before`: distributions that were there."""
    count, unpacked = len(download.packages), _distributions(site) - before
    if unpacked > 0:
        return f"unpacking {min(unpacked + 1, count)} of {count} packages"
    return f"fetching {count} packages, {size(download.remote_bytes)}"


def _distributions(site: Site) -> int:
    return len(list(site.folder.glob("lib/python*/site-packages/*.dist-info")))


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


def check_build(text: str) -> str:
    """Raises UsageError for what names no build."""
    if not BUILD.fullmatch(text):
        raise UsageError(f"torch has no build {text!r}.", "Builds are cpu, cuda, cu128, rocm6.4, xpu.")
    return text


def running_build() -> str:
    """The build of the torch beside accelbench; "" where there is none or it does not say."""
    try:
        return build_of(version("torch"))
    except PackageNotFoundError:
        return ""


def build_of(torch: str) -> str:
    """`2.13.0+cpu` → `cpu`; a version that does not say: ""."""
    found = torch.partition("+")[2]
    return found if BUILD.fullmatch(found) else ""


def pip_options(build: str) -> list[str]:
    """What makes pip look where the build is; its version is higher than that of the same release without."""
    return [] if build in ("", GENERAL) else ["--extra-index-url", f"{INDEX}/{build}"]


def check_resolved(build: str, requirements: Sequence[str], download: Download) -> None:
    """Raises CannotBuild where pip found another build of torch than is wanted."""
    for package in download.packages:
        other = build_of(package.version) or GENERAL
        if build and package.name == "torch" and other != build:
            takes = f"only torch {package.version}, {size(download.remote_bytes)} to download in all"
            raise CannotBuild(
                f"pip finds no build for {build} of {requirements[0]}, {takes}.",
                f"PIP_EXTRA_INDEX_URL names an index with {build} builds; --variant {other} takes that one.",
            )
