"""Git: the commit at hand; another revision of the user's own code, in a folder of its own. Only reads."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchbench import paths
from benchbench.errors import UsageError
from benchbench.launch.project import UserCode
from benchbench.store import tags

GIT_TIMEOUT_S = 120.0
POINTING = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")  # set in hooks, to another repository perhaps


def current_commit(folder: str = ".") -> str:
    """Of the checkout that `folder` lies in, `-dirty` added where files of it were changed; empty in none."""
    status = ("status", "--porcelain=v2", "--branch", "--untracked-files=no")
    try:
        done = _git(folder, *status, GIT_OPTIONAL_LOCKS="0")
    except UsageError:  # no git, or none that answers
        return ""
    found = re.search(r"^# branch\.oid ([0-9a-f]{40,64})$", done.stdout, re.MULTILINE)
    if done.returncode or not found:
        return ""
    changed = any(not line.startswith("#") for line in done.stdout.splitlines())
    return tags.commit_name(found[1], dirty=changed)


def commit_tag() -> dict[str, str]:
    """`commit` of the working folder as a tag, if it lies in a checkout."""
    found = current_commit()
    return {tags.COMMIT: found} if found else {}


@contextmanager
def checked_out(revision: str, code: UserCode) -> Iterator[UserCode]:
    """`code` as of a revision: each folder that lies in a repository is taken from a checkout of all of it.

    Raises UsageError where no folder of workloads lies in a repository, that has no such revision, or git
    cannot be run.
    """
    roots = {each: _root(each) for each in (*code.workloads, *code.python_path, *code.sources)}
    if not any(roots[each] for each in code.workloads):
        raise UsageError(
            f"rev:{revision} needs workloads in a git repository.",
            "Name their folder in accelbench.toml: [code], workloads = […]; or in ACCELBENCH_WORKLOADS.",
        )
    with tempfile.TemporaryDirectory(prefix="accelbench-") as place:
        trees = {
            root: _tree(root, revision, Path(place) / str(number))
            for number, root in enumerate(dict.fromkeys(root for root in roots.values() if root))
        }
        moved = {each: _moved(each, root, trees) for each, root in roots.items()}
        yield UserCode(
            *(tuple(moved[each] for each in own) for own in (code.workloads, code.python_path, code.sources))
        )


def _moved(path: str, root: str, trees: dict[str, Path]) -> str:
    return str(trees[root] / paths.resolved(path).relative_to(root)) if root else path


def _root(path: str) -> str:
    """Of the repository that a folder is in; empty where it is in none."""
    if not os.path.isdir(path):
        return ""
    done = _git(path, "rev-parse", "--show-toplevel")
    return str(paths.resolved(done.stdout.strip())) if done.returncode == 0 else ""


def _tree(root: str, revision: str, place: Path) -> Path:
    """A checkout through an index of its own: no worktree to clean up, nothing left out of an archive."""
    name = f"{revision}^{{commit}}"
    commit = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", name)
    if commit.returncode:
        raise UsageError(f"{root} has no revision {revision!r}.", "git log --oneline lists them.")
    place.mkdir()
    index = {"GIT_INDEX_FILE": str(place / "index")}
    tree = place / "tree"
    for arguments in (
        ("read-tree", commit.stdout.strip()),
        ("checkout-index", "--all", f"--prefix={tree}{os.sep}"),
    ):
        done = _git(root, *arguments, **index)
        if done.returncode:
            raise UsageError(f"git {arguments[0]} failed: {done.stderr.strip()[:300]}", f"Try it in {root}.")
    return tree


def _git(where: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Raises UsageError where git cannot be started, or does not answer in time."""
    own = {name: value for name, value in os.environ.items() if name not in POINTING}
    try:
        return subprocess.run(
            ["git", "-C", where, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GIT_TIMEOUT_S,
            env=own | environment,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"git cannot be run in {where}: {error}", "Try git status there.") from error
