"""Run pip in a virtual environment: resolve requirements, measure the download, install."""

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
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from benchbench.environments import interpreters
from benchbench.errors import CannotBuild, CannotWrite, UsageError
from benchbench.format import count_of, size
from benchbench.machine.environment import CACHE

Tell = Callable[[str], None]
LOG, SCRATCH = "pip.log", "tmp"
RESOLVING_PIP = "pip>=25.3"  # older versions download every wheel in a dry run (pypa/pip#13482)
NO_WHEELS = "--use-feature=fast-deps"  # range requests for metadata that the index does not serve
FEW_RETRIES = ("--retries", "1")  # pip retries an unreachable index for every package
GRACE_S = 5.0
QUOTED, WIDTH = 12, 200  # lines of the log in an error, and characters per line
ELSEWHERE = (
    "PIP_PYTHON",
    "PIP_TARGET",
    "PIP_PREFIX",
    "PIP_ROOT",
    "PIP_USER",
)  # these would install outside the environment
EMPTY_BYTES = 30 * 2**20  # of a virtual environment with only pip
UNPACKED = 3.0  # estimated bytes on disk per byte of an archive
TIMEOUT_S = 10.0
REQUESTS = 8  # in parallel
INDEX = "https://download.pytorch.org/whl"  # pytorch.org/get-started has a folder per build
GENERAL = "cuda"  # the build on the general index
BUILD = re.compile(rf"cpu|{GENERAL}|cu[0-9]{{3}}|rocm[0-9]+(\.[0-9]+)+|xpu")


@dataclass(frozen=True, slots=True)
class Site:
    """Folder of a build, and the descriptor of its lock."""

    folder: Path
    lock: int

    @property
    def python(self) -> str:
        return str(interpreters.interpreter_in(self.folder))

    @property
    def log(self) -> Path:
        """Output of venv and pip."""
        return self.folder / LOG


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A file that pip would install, with its size if known."""

    name: str
    version: str
    remote: bool
    bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """Packages that an environment needs, and the free disk space."""

    packages: tuple[Package, ...]
    free_bytes: int

    @property
    def remote_bytes(self) -> int:
        """Bytes to download if none of it is in pip's cache."""
        return sum(package.bytes or 0 for package in self.packages if package.remote)

    @property
    def disk_bytes(self) -> int:
        """Estimated size of the finished environment."""
        packed_bytes = sum(package.bytes or 0 for package in self.packages)
        return EMPTY_BYTES + round(UNPACKED * packed_bytes)

    @property
    def unknown(self) -> int:
        """Number of packages of unknown size."""
        return sum(package.bytes is None for package in self.packages)


def resolve(site: Site, base: str, requirements: Sequence[str], variant: str, tell: Tell) -> Download:
    """Create the virtual environment, and ask its pip for the packages it would install.

    `variant`: build of torch to look for. Raises CannotBuild.
    """
    tell(f"making a virtual environment of {base}")
    venv = [base, "-I", "-m", "venv", str(site.folder)]
    _run_or_raise(site, venv, "venv failed", "On Debian and Ubuntu venv needs the package python3-venv.")
    _run(site, [*_pip(site), "install", "--upgrade", "--quiet", RESOLVING_PIP])  # optional: it is faster
    tell(f"resolving {' '.join(requirements)}")
    report = site.folder / SCRATCH / "report.json"
    dry_run = [*_pip(site), "install", "--dry-run", "--report", str(report)]
    options = pip_options(variant)
    arguments = [*options, *(FEW_RETRIES if options else ()), "--", *requirements]
    if _run(site, [*dry_run, NO_WHEELS, *arguments]) != 0:
        _run_or_raise(site, [*dry_run, *arguments], "pip cannot resolve these requirements", _hint(site))
    packages = measure_packages(msgspec.json.decode(report.read_bytes())["install"])
    folder = interpreters.environments_folder()
    existing = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    return Download(packages=packages, free_bytes=shutil.disk_usage(existing).free)


def check_room(download: Download) -> None:
    """Raise CannotWrite if the disk is too full. Downloads and unpacked files exist at the same time."""
    required_bytes = download.disk_bytes + download.remote_bytes
    if required_bytes > download.free_bytes:
        hint = f"Free space there, or set {CACHE} to a folder with more."
        shortage = (
            f"It needs about {size(required_bytes)} while it is built, {size(download.free_bytes)} are free"
        )
        raise CannotWrite(f"{shortage} in {interpreters.environments_folder()}.", hint)


def install(site: Site, requirements: Sequence[str], variant: str, download: Download, tell: Tell) -> None:
    """Install the requirements with pip. Raises CannotBuild."""
    tell(f"installing {count_of(len(download.packages), 'package')}, {size(download.remote_bytes)}")
    command = [*_pip(site), "install", *pip_options(variant), "--", *requirements]
    _run_or_raise(site, command, "pip failed to install these packages", _hint(site))


def installed(site: Site) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the installed packages as name → version, and the names of the requested ones."""
    process = subprocess.run([*_pip(site), "inspect"], capture_output=True, env=_environment(site))
    try:
        packages_info = msgspec.json.decode(process.stdout)["installed"]
    except (ValueError, KeyError) as error:
        raise CannotBuild("pip inspect gave no list of packages.", _hint(site)) from error
    packages = {package["metadata"]["name"]: package["metadata"]["version"] for package in packages_info}
    requested = [package["metadata"]["name"] for package in packages_info if package.get("requested")]
    return dict(sorted(packages.items())), tuple(sorted(set(requested) - {"pip", "setuptools"}))


def _pip(site: Site) -> list[str]:
    """Command of the environment's pip. -I keeps this program's environment off its path."""
    return [site.python, "-I", "-m", "pip", "--no-input", "--disable-pip-version-check", "--no-color"]


def _hint(site: Site) -> str:
    return f"Its output is in {site.log}. --with takes other versions, --base another Python."


def _run_or_raise(site: Site, command: Sequence[str], failure: str, hint: str) -> None:
    start = site.log.stat().st_size if os.path.exists(site.log) else 0
    if _run(site, command) != 0:
        output = site.log.read_bytes()[start:].decode(errors="replace").splitlines()[-QUOTED:]
        lines = [f"  {line[:WIDTH]}{'…' if len(line) > WIDTH else ''}" for line in output]
        raise CannotBuild(f"{failure}:", hint, lines)


def _run(site: Site, command: Sequence[str]) -> int:
    """Run a command, writing its output to the log, and return its exit code. It is ended if this process is
    interrupted.
    """
    process = _start(site, command)
    try:
        return process.wait()
    finally:
        _end(process)


def _start(site: Site, command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a command that inherits the lock, so that the folder stays locked if it outlives this process."""
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
    """Environment variables of pip. Wheels are unpacked next to the environment, since /tmp may be small."""
    variables = {name: value for name, value in os.environ.items() if name.upper() not in ELSEWHERE}
    return variables | {"TMPDIR": str(site.folder / SCRATCH)}


def _end(process: subprocess.Popen[bytes]) -> None:
    for sign in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)


def measure_packages(reported: Sequence[dict[str, Any]]) -> tuple[Package, ...]:
    """Read the packages of pip's installation report with their sizes."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(REQUESTS) as pool:
        return tuple(pool.map(_package, reported))


def _package(reported: dict[str, Any]) -> Package:
    info = reported["download_info"]
    packed_bytes = None
    if "archive_info" in info:  # otherwise it is a folder or a checkout
        with suppress(OSError, ValueError, HTTPException):
            packed_bytes = _packed_bytes(info["url"])
    return Package(
        name=reported["metadata"]["name"],
        version=reported["metadata"]["version"],
        remote=not info["url"].startswith("file:"),
        bytes=packed_bytes,
    )


def _packed_bytes(url: str) -> int | None:
    """Size of a file, by its address. Raises OSError, ValueError, HTTPException."""
    from urllib.request import Request, urlopen

    if url.startswith("file:"):
        return Path(unquote(urlsplit(url).path)).stat().st_size
    if not url.startswith(("https:", "http:")):
        raise ValueError(f"not an HTTP address: {url}")
    request = Request(url, method="HEAD")  # noqa: S310 - checked above
    with urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
        length = answer.headers["Content-Length"]
    return int(length) if length and length.isdecimal() else None


def check_build(text: str) -> str:
    """Return the name of a build of torch. Raises UsageError if it is not one."""
    if not BUILD.fullmatch(text):
        raise UsageError(f"torch has no build {text!r}.", "Builds are cpu, cuda, cu128, rocm6.4, xpu.")
    return text


def running_build() -> str:
    """Build of the torch installed with accelbench, or "" if there is none or its version names none."""
    try:
        return build_of(version("torch"))
    except PackageNotFoundError:
        return ""


def build_of(torch: str) -> str:
    """Build in a version of torch: `2.13.0+cpu` → `cpu`, or ""."""
    label = torch.partition("+")[2]
    return label if BUILD.fullmatch(label) else ""


def pip_options(build: str) -> list[str]:
    """Options that make pip find a build, whose version number exceeds the general build's."""
    return [] if build in ("", GENERAL) else ["--extra-index-url", f"{INDEX}/{build}"]


def check_resolved(build: str, requirements: Sequence[str], download: Download) -> None:
    """Raise CannotBuild if pip found another build of torch than the requested one."""
    for package in download.packages:
        actual = build_of(package.version) or GENERAL
        if build and package.name == "torch" and actual != build:
            takes = f"only torch {package.version}, {size(download.remote_bytes)} to download in all"
            raise CannotBuild(
                f"pip finds no build for {build} of {requirements[0]}, {takes}.",
                f"PIP_EXTRA_INDEX_URL names an index with {build} builds; --variant {actual} takes that one.",
            )
