"""Processes that jobs leave running: they stay below the worker, whatever their session, and end with it.

Linux only: a child subreaper adopts the orphans below it (prctl(2), PR_SET_CHILD_SUBREAPER), so the
kernel's list of a process's children is the one list of everything started.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
GRACE_S = 5.0  # for killed processes to be gone: one in an uninterruptible call may take longer
ASKED_S = 0.5  # of it until what was asked to end is killed
PAUSE_S = 0.002
STOPPING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
HEARD = {signal.SIGCHLD, signal.SIGCONT}
LINUX = sys.platform == "linux"


def die_with_parent(parent: int, sign: signal.Signals = signal.SIGKILL) -> None:
    """Have `sign` sent to this process when its parent is gone; exit if it already is."""
    _prctl(PR_SET_PDEATHSIG, sign)
    if os.getppid() != parent:
        os._exit(1)


def supervise(parent: int, descriptor: int) -> int:
    """Fork. The child returns, with the id of its parent, which stays behind and never returns.

    The parent ends all that is below it when the child ends, when it is asked to stop, or when `parent`
    is gone, however that was. It keeps no `descriptor`, and ends as the child did.
    """
    if not LINUX:
        return parent
    adopt_orphans()
    signal.pthread_sigmask(signal.SIG_BLOCK, {*STOPPING, *HEARD})
    die_with_parent(parent, signal.SIGCONT)  # heeded also while it is stopped
    own = os.getpid()
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {*STOPPING, *HEARD})
        return own
    os.close(descriptor)
    status = _ended(child, parent)
    end_children()
    _end_like(status)
    raise AssertionError("unreachable")


def adopt_orphans() -> None:
    """Become the parent of those below whose own parent ends."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def children() -> set[int]:
    """Ids of this process's children, zombies included; none where they cannot be told."""
    if not LINUX:
        return set()
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return set()
    own = os.getpid()
    return {int(path.name) for path in Path("/proc").glob("[0-9]*") if _parent(path) == own}


def end_children(spare: frozenset[int] | set[int] = frozenset()) -> None:
    """End and reap every child but `spare`, then those they leave to this process, until none is left.

    SIGTERM first: Python's resource tracker, which heeds none, ends when the processes it serves have ended,
    and removes the shared memory and the semaphores they left. SIGCONT: they may be stopped. SIGKILL after
    `ASKED_S`.
    """
    begun = time.monotonic()
    while (left := children() - spare) and (taken_s := time.monotonic() - begun) < GRACE_S:
        for pid in left:
            for sign in (signal.SIGTERM, signal.SIGCONT) if taken_s < ASKED_S else (signal.SIGKILL,):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, sign)
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(PAUSE_S)


def _ended(child: int, parent: int) -> int:
    """The wait status of the child once it ended; 0 if asked to stop before, or if `parent` is gone."""
    while signal.sigwait({*STOPPING, *HEARD}) in HEARD and os.getppid() == parent:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:  # adopted ones too
                if ended[0] == child:
                    return ended[1]
    return 0


def _end_like(status: int) -> None:
    """End this process with the exit code or the signal of another, without a core dump of its own."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        _prctl(PR_SET_DUMPABLE, 0)
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
    os._exit(max(code, 1) if code < 0 else code)


def _parent(path: Path) -> int | None:
    """The parent of the process whose folder in /proc it is; None if it is gone."""
    try:
        return int((path / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return None


def _prctl(option: int, value: int) -> None:
    if LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(option, value)
