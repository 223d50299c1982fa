"""A virtual environment and its pip: what it would fetch and how large that is, then the fetching."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchbench.environments import interpreters
from benchbench.environments.torch_builds import pip_options
from benchbench.environments.wheels import Download, measure_packages
from benchbench.errors import CannotBuild, CannotWrite
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


def resolve(site: Site, base: str, requirements: Sequence[str], variant: str, tell: Tell) -> Download:
    """Make the virtual environment and ask its pip what it would install. Raises CannotBuild.

    `variant`: the build of torch to look for.
    """
    tell(f"making a virtual environment of {base}")
    venv = [base, "-I", "-m", "venv", str(site.folder)]
    _must(site, venv, "venv failed", "On Debian and Ubuntu venv needs the package python3-venv.")
    _run(site, [*_pip(site), "install", "--upgrade", "--quiet", RESOLVING_PIP])  # without it: slower
    tell(f"asking pip what {' '.join(requirements)} takes")
    report = site.folder / SCRATCH / "report.json"
    asked = [*_pip(site), "install", "--dry-run", "--report", str(report)]
    options = pip_options(variant)
    wanted = [*options, *(FEW_RETRIES if options else ()), "--", *requirements]
    if _run(site, [*asked, NO_WHEELS, *wanted]) != 0:
        _must(site, [*asked, *wanted], "pip finds no way to install that", _other(site))
    found = measure_packages(msgspec.json.decode(report.read_bytes())["install"])
    return Download(
        packages=found, free_bytes=shutil.disk_usage(_existing(interpreters.environments_folder())).free
    )


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
    except (msgspec.MsgspecError, KeyError) as error:
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


def _existing(folder: Path) -> Path:
    return next(each for each in (folder, *folder.parents) if os.path.exists(each))
