"""Supervision of the processes that jobs start, in any session, so that they end with the worker.

Linux only: a child subreaper adopts the orphans below it (prctl(2), PR_SET_CHILD_SUBREAPER), so the kernel's
list of a process's children contains everything that was started.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from benchbench.machine.kernel import LINUX, child_ids, has_children, set_process_option

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
GRACE_S = 5.0  # wait for processes to end; in an uninterruptible call they may take longer
TERMINATE_S = 0.5  # from SIGTERM to SIGKILL
PAUSE_S = 0.002
STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
WAKE_SIGNALS = {signal.SIGCHLD, signal.SIGCONT}


def die_with_parent(parent: int, sign: signal.Signals = signal.SIGKILL) -> None:
    """Have `sign` sent to this process when its parent ends. Exit if the parent already ended."""
    set_process_option(PR_SET_PDEATHSIG, sign)
    if os.getppid() != parent:
        os._exit(1)


def supervise(parent: int, descriptor: int) -> int:
    """Fork, and return the id of the supervisor in the child. The supervisor never returns.

    The supervisor ends all processes below it when the child ends, when it gets a stop signal, or when
    `parent` ends for any reason. It closes `descriptor`, and exits with the child's status.
    """
    if not LINUX:
        return parent
    adopt_orphans()
    signal.pthread_sigmask(signal.SIG_BLOCK, {*STOP_SIGNALS, *WAKE_SIGNALS})
    die_with_parent(parent, signal.SIGCONT)  # SIGCONT works even if this process is stopped
    supervisor = os.getpid()
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {*STOP_SIGNALS, *WAKE_SIGNALS})
        return supervisor
    os.close(descriptor)
    status = _wait_for_child(child, parent)
    end_children()
    _exit_like(status)
    raise AssertionError("unreachable")


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent ends."""
    set_process_option(PR_SET_CHILD_SUBREAPER, 1)


def children() -> set[int]:
    """Ids of this process's children, including zombies; empty if not on Linux."""
    return child_ids() if LINUX and has_children() else set()


def end_children(exempt: frozenset[int] | set[int] = frozenset()) -> None:
    """End and reap every child except `exempt`, and then the orphans that they leave.

    SIGTERM comes first. Python's resource tracker ignores it: it ends after the processes that it serves, and
    removes their shared memory and semaphores. SIGCONT follows in case they are stopped. SIGKILL is sent
    after `TERMINATE_S`.
    """
    started = time.monotonic()
    while (remaining := children() - exempt) and (elapsed_s := time.monotonic() - started) < GRACE_S:
        for pid in remaining:
            for sign in (signal.SIGTERM, signal.SIGCONT) if elapsed_s < TERMINATE_S else (signal.SIGKILL,):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, sign)
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(PAUSE_S)


def _wait_for_child(child: int, parent: int) -> int:
    """Wait for the child and return its wait status, or 0 after a stop signal or the end of `parent`."""
    while signal.sigwait({*STOP_SIGNALS, *WAKE_SIGNALS}) in WAKE_SIGNALS and os.getppid() == parent:
        with suppress(ChildProcessError):
            while (result := os.waitpid(-1, os.WNOHANG))[0]:  # also adopted processes
                if result[0] == child:
                    return result[1]
    return 0


def _exit_like(status: int) -> None:
    """End this process with the exit code or signal of another, without a core dump."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        set_process_option(PR_SET_DUMPABLE, 0)
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
    os._exit(max(code, 1) if code < 0 else code)
