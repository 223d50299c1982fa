"""Run `python -m MODULE` in a fork of a process with the command line's modules.

Imports take most of a short command's time. A forked command has its own arguments, environment, working
folder, standard streams, signals and exit code, as in a fresh process. The same holds for the processes that
it starts for the fake backend and for user files. Tests of start-up and of signals start fresh processes.
"""

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import benchbench
from tests.brief import BRIEFLY, time_briefly

HEAVY = (
    *("numpy.random", "pandas", "scipy.stats", "matplotlib.figure", "matplotlib.backends.backend_agg"),
    *("rich.table", "rich.console", "rich.markup", "psutil", "pynvml", "jsonschema"),
)
OF_THE_COMMAND_LINE = ("typer._adapters", "typer.rich_utils")  # not every Typer has them
NOT_NOW = ("__main__", "pytest_plugin")  # these act when imported, or need another program
AT_START = ("PYTHON", "LC_", "LANG", "TZ", "MPL")  # variables that a process reads once, when it starts
MOST_BYTES = 2**18  # of a request
MOST_DESCRIPTORS = 2**16
MODULE = (sys.executable, "-P", "-m")
FORKED = (*MODULE, "benchbench.worker", "fake")


def can_stand_for_fresh(changed: Mapping[str, str]) -> bool:
    """True if none of these variables is read only at the start of a process."""
    return all(name == "PYTHONPATH" or not name.startswith(AT_START) for name in changed)


class ForkServer:
    """The server of this process. It runs one command at a time."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fork_server", str(theirs.fileno())],
                cwd=Path(__file__).parent.parent,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        atexit.register(self.close)

    def run(
        self, module: str, *arguments: str, cwd: Path, env: Mapping[str, str], timeout_s: int
    ) -> subprocess.CompletedProcess[str]:
        """Like `subprocess.run` with captured output; SIGALRM ends the process after `timeout_s`."""
        request = {"module": module, "arguments": arguments, "cwd": str(cwd), "env": env}
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            streams = [0, out.fileno(), err.fileno()]
            socket.send_fds(self._channel, [json.dumps(request | {"timeout_s": timeout_s}).encode()], streams)
            code = int(self._channel.recv(MOST_BYTES))
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess([module, *arguments], code, out.read(), err.read())

    def close(self) -> None:
        self._channel.close()
        self._process.wait()


def serve(channel: socket.socket) -> None:
    """Fork a process per request and send its exit code, until the channel closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the tests, which end this server
    import_all()
    gc.freeze()
    while True:
        content, streams, _, _ = socket.recv_fds(channel, MOST_BYTES, 3)
        if not content:
            return
        pid = os.fork()
        if pid == 0:
            channel.close()
            become(json.loads(content), streams)
        for stream in streams:
            os.close(stream)
        channel.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def import_all() -> None:
    """Import the modules without calling anything, so that nothing that depends on the environment is cached.

    Files of commands are left out: importing one registers its command.
    """
    for module in pkgutil.walk_packages(benchbench.__path__, "benchbench."):
        if not any(part in module.name for part in (*NOT_NOW, "benchbench.cli.")):
            importlib.import_module(module.name)
    for name in HEAVY:
        importlib.import_module(name)
    for name in OF_THE_COMMAND_LINE:
        with suppress(ImportError):
            importlib.import_module(name)


def become(request: dict[str, Any], streams: Sequence[int]) -> NoReturn:
    """Run the request in this process, and end it as the interpreter would, without freeing memory."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.alarm(request["timeout_s"])
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["cwd"])
    if BRIEFLY.items() <= request["env"].items():
        time_briefly()
    subprocess.Popen = ForkingPopen  # type: ignore[misc, assignment]
    run_and_exit(request["module"], request["arguments"], request["env"], [request["cwd"]])


class ForkingPopen(subprocess.Popen[Any]):
    """Like `subprocess.Popen`, but the command `FORKED` runs in the fork and execute no program."""

    def __init__(self, args: Any, **options: Any) -> None:
        if is_forked(args):
            descriptors = [0, 1, 2, *options["pass_fds"]]
            options["preexec_fn"] = partial(run_in_fork, args[3], args[4:], options["env"], descriptors)
        super().__init__(args, **options)


def is_forked(command: Sequence[str] | str) -> bool:
    return (*command[: len(FORKED)],) == FORKED


def run_in_fork(
    module: str, arguments: Sequence[str], env: Mapping[str, str], descriptors: Sequence[int]
) -> NoReturn:
    """Run the module in this process after closing all other descriptors."""
    for low, high in pairwise([*sorted(descriptors), MOST_DESCRIPTORS]):
        if low + 1 < high:  # an empty range would be closed to its end
            os.closerange(low + 1, high)
    for sign in signal.valid_signals():
        if callable(signal.getsignal(sign)):
            signal.signal(sign, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for sign in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(sign, signal.SIG_IGN)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, errors="backslashreplace")  # noqa: SIM115
    atexit._clear()  # functions of the command
    run_and_exit(module, arguments, env, [])


def run_and_exit(
    module: str, arguments: Sequence[str], env: Mapping[str, str], folders: Sequence[str]
) -> NoReturn:
    """Run the module; `folders` replace the folder of the command, the first of `sys.path`."""
    os.environ.clear()
    os.environ.update(env)
    added = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path not in sys.path]
    sys.path[:1] = [*folders, *added]
    sys.argv[1:] = arguments
    code = 1
    try:
        code = exit_code(module)
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as multiprocessing does
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def exit_code(module: str) -> int:
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:  # noqa: BLE001 - as the interpreter does at its end
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as own_end:
        serve(own_end)
