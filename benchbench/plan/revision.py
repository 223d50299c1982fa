"""Git: the commit at hand; another revision of the user's own code, in a folder of its own. Only reads."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchbench import paths
from benchbench.errors import AccelbenchWarning, UnreadableInput, UsageError
from benchbench.launch.project import UserCode
from benchbench.model import own
from benchbench.reading import MOST_TOML, read_file
from benchbench.store import naming

GIT_TIMEOUT_S = 120.0
POINTING = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")  # set in hooks, to another repository perhaps
# A bare repository among the files of a commit would otherwise be taken for the one its folder lies in.
NO_EMBEDDED = ("-c", "safe.bareRepository=explicit")
NO_REPOSITORY = "not a git repository (or any"  # of the folders above; else it names one that is broken
IN_A_REPOSITORY = (
    'Give --model my_model.py, or name your workloads in accelbench.toml: [code], workloads = ["folder"].'
)
GITLINK = "160000"  # the mode of a submodule in a tree


def current_commit(folder: str = ".") -> str:
    """The commit of the checkout that `folder` lies in, `-dirty` added where files of it were changed.

    Empty where it lies in none, or before the first commit. Raises UsageError where git does not answer.
    """
    if not (checkout := _checkout(folder)):
        return ""
    status = ("status", "--porcelain=v2", "--branch", "--untracked-files=no")
    told = _answer(checkout, *status, GIT_OPTIONAL_LOCKS="0")
    found = re.search(r"^# branch\.oid ([0-9a-f]{40,64})$", told, re.MULTILINE)
    if not found:
        return ""
    changed = any(not line.startswith("#") for line in told.splitlines())
    return naming.commit_name(found[1], dirty=changed)


def commit_tag() -> dict[str, str]:
    """`commit` of the working folder as a tag, if it lies in a checkout.

    Where git fails there is none, and an AccelbenchWarning says why.
    """
    try:
        found = current_commit()
    except UsageError as error:
        _warn_once(f"the tag commit is not set: {error}", error.hint)
        return {}
    return {naming.COMMIT: found} if found else {}


@cache
def _warn_once(text: str, hint: str) -> None:
    """A comparison makes several runs, and what keeps all of them from a commit is the same."""
    warnings.warn(AccelbenchWarning(text, hint), stacklevel=3)


@contextmanager
def checked_out(revision: str, code: UserCode) -> Iterator[UserCode]:
    """`code` as of a revision: each folder that lies in a repository is taken from a checkout of all of it.

    Of a folder in a submodule the repository is the outermost one, and the submodule is as that one has it.
    Raises UsageError where no folder of workloads lies in a repository, that has no such revision, a
    submodule lacks its commit, or git fails.
    """
    models = own.from_text(code.models)
    folders = [own.folder_of(spec) for spec in models.values()]
    roots = {each: _root(each) for each in (*code.workloads, *code.python_path, *code.sources, *folders)}
    for spec in models.values():
        if not roots[own.folder_of(spec)]:
            raise UsageError(f"rev:{revision} needs {spec.text} in a git repository.", "Commit it to one.")
    if not any(roots[each] for each in (*code.workloads, *folders)):
        raise UsageError(
            f"rev:{revision} needs code of yours in a git repository: the shipped workloads do not change.",
            IN_A_REPOSITORY,
        )
    for spec in models.values():  # what it opens, or imports, from where it was asked for
        if _root(spec.folder) == roots[own.folder_of(spec)]:
            roots[spec.folder] = roots[own.folder_of(spec)]
    with tempfile.TemporaryDirectory(prefix="accelbench-") as place:
        trees = {
            root: _tree(root, revision, Path(place) / str(number))
            for number, root in enumerate(dict.fromkeys(root for root in roots.values() if root))
        }
        moved = {
            each: str(trees[root] / paths.resolved(each).relative_to(root)) if root else each
            for each, root in roots.items()
        }
        yield UserCode(
            workloads=tuple(moved[each] for each in code.workloads),
            python_path=tuple(moved[each] for each in code.python_path),
            sources=tuple(moved[each] for each in code.sources),
            models=own.as_text({name: own.moved(spec, moved) for name, spec in models.items()}),
            variables=code.variables,
        )


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit and the first line of its message."""

    name: str
    subject: str


def first_parents(good: str, bad: str, code: UserCode, more: Sequence[str] = ()) -> list[Commit]:
    """`good`, and every commit from there to `bad` along first parents: a merge is one step of its branch.

    Of the repository that all of the user's code lies in, that of the folders `more` too. Raises UsageError,
    also where `good` is not among the ancestors of `bad`.
    """
    folders = (*code.workloads, *code.python_path, *code.sources, *more)
    roots = {root for root in map(_root, folders) if root}
    if len(roots) != 1:
        lies = f"; yours lies in {len(roots)}: {', '.join(sorted(roots))}" if roots else ""
        raise UsageError(
            f"A row of revisions needs code of yours in one git repository{lies}.", IN_A_REPOSITORY
        )
    (root,) = roots
    ends = {name: _commit(root, name) for name in (good, bad)}
    if ends[good] == ends[bad]:
        raise UsageError(f"{good} and {bad} are one commit.", f"git log --oneline {good} shows others.")
    if _git(root, "merge-base", "--is-ancestor", ends[good], ends[bad]).returncode:
        swapped = not _git(root, "merge-base", "--is-ancestor", ends[bad], ends[good]).returncode
        hint = f"{bad}..{good} is in order." if swapped else f"git merge-base {good} {bad} names one that is."
        raise UsageError(f"{good} is no ancestor of {bad}.", hint)
    row = ("log", "--first-parent", "--reverse", "--format=%H %s", f"{ends[good]}..{ends[bad]}")
    lines = [_answer(root, "log", "-1", "--format=%H %s", ends[good]), *_answer(root, *row).splitlines()]
    return [Commit(*line.partition(" ")[::2]) for line in lines]


def content_at(revision: str, path: Path) -> bytes | None:
    """What a small file held at a revision of its folder's repository; None where it was not there.

    In no repository it is what the file holds now. Raises UsageError, UnreadableInput.
    """
    here, named = _root("."), Path(os.path.normpath(paths.absolute(path)))
    real = paths.resolved(path.parent) / path.name
    # By its name in the working folder's repository first: a link there may be newer than the revision.
    places = [(here, named)] if here and named.is_relative_to(here) else []
    if root := _root(str(next(folder for folder in real.parents if os.path.isdir(folder)))):
        places.append((root, real))
    if not places:
        return read_file(real, MOST_TOML) if os.path.isfile(real) else None
    contents = (_blob(root, revision, place) for root, place in dict.fromkeys(places))
    return next((content for content in contents if content is not None), None)


def _blob(root: str, revision: str, path: Path) -> bytes | None:
    """The content of a small file at a revision; None if the revision has no such file."""
    name = f"{_commit(root, revision)}:{path.relative_to(root).as_posix()}"
    if _git(root, "cat-file", "-e", name).returncode:
        return None
    if int(_answer(root, "cat-file", "-s", name)) > MOST_TOML:
        raise UnreadableInput(f"{path} of {revision}: larger than {MOST_TOML} bytes")
    return _git(root, "cat-file", "blob", name).stdout.encode()


def _checkout(path: str) -> str:
    """The nearest folder with a `.git`, from `path` upwards; empty if there is none.

    Git's own search would stop at a bare repository before, and does in versions that do not know
    `safe.bareRepository`. No commit can contain a `.git`.
    """
    here = paths.resolved(path)
    return next((str(each) for each in (here, *here.parents) if os.path.lexists(each / ".git")), "")


def _root(path: str) -> str:
    """The root of the outermost repository that a folder is in; empty where it is in none."""
    if not os.path.isdir(path) or not (checkout := _checkout(path)):
        return ""
    root, outer = "", _answer(checkout, "rev-parse", "--show-toplevel")
    while outer:
        root = outer
        outer = _answer(root, "rev-parse", "--show-superproject-working-tree")
    return str(paths.resolved(root)) if root else ""


def _tree(root: str, revision: str, place: Path) -> Path:
    """A checkout of a revision, submodules included; files that are not tracked are not there."""
    git_dir = Path(_answer(root, "rev-parse", "--absolute-git-dir"))
    _check_out(Path(root), git_dir, _commit(root, revision), place)
    return place


def _commit(root: str, revision: str) -> str:
    """The commit that a revision names. Raises UsageError where there is none."""
    name = f"{revision}^{{commit}}"
    found = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", name)
    if found.returncode:
        is_shallow = _answer(root, "rev-parse", "--is-shallow-repository") == "true"
        deepen = "The clone is shallow: git fetch --deepen=100 there; in GitHub's checkout, fetch-depth: 0."
        hint = deepen if is_shallow else "git log --oneline lists them."
        raise UsageError(f"{root} has no revision {revision!r}.", hint)
    return found.stdout.strip()


def _check_out(root: Path, git_dir: Path, commit: str, tree: Path) -> None:
    """A commit and those of its submodules, into an empty folder.

    Each has an index of its own: no worktree to clean up, nothing left out of an archive. `root`: where its
    files are now. A submodule that nobody has fetched is the empty folder that it is in a clone, too.
    """
    tree.mkdir(parents=True, exist_ok=True)
    own = {"GIT_DIR": str(git_dir), "GIT_WORK_TREE": str(tree)}
    with tempfile.TemporaryDirectory(prefix="accelbench-") as index:
        own["GIT_INDEX_FILE"] = f"{index}/index"
        _answer(str(tree), "read-tree", commit, **own)
        _answer(str(tree), "checkout-index", "--all", **own)
    for entry in _answer(str(tree), "ls-tree", "-r", "-z", commit, **own).split("\0"):
        facts, _, name = entry.partition("\t")
        if not facts.startswith(GITLINK):
            continue
        inner, pinned = root / name, facts.split()[2]
        theirs = _git_dir(inner) or git_dir / "modules" / name  # where git keeps one that is elsewhere now
        if not os.path.isdir(theirs):
            continue
        if _git(str(tree), "cat-file", "-e", f"{pinned}^{{commit}}", GIT_DIR=str(theirs)).returncode:
            fetch = f"git --git-dir={theirs} fetch origin {pinned}"
            raise UsageError(f"The submodule {inner} lacks the commit {pinned[:12]} of that revision.", fetch)
        _check_out(inner, theirs, pinned, tree / name)


def _git_dir(folder: Path) -> Path | None:
    """The git folder of the repository whose root is `folder`, if it is one."""
    found = os.path.exists(folder / ".git")
    return Path(_answer(str(folder), "rev-parse", "--absolute-git-dir")) if found else None


def _answer(where: str, *arguments: str, **environment: str) -> str:
    """What git prints, without the newline at its end; nothing where `where` is in no repository.

    Raises UsageError with what git says where it fails.
    """
    done = _git(where, *arguments, **environment)
    if done.returncode == 0:
        return done.stdout.removesuffix("\n")
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    if any(NO_REPOSITORY in line for line in lines):
        return ""
    remedy = next((line for line in lines if line.startswith("git config")), "")
    said = lines[0].removeprefix("fatal: ") if lines else f"exit code {done.returncode}"
    raise UsageError(f"git {arguments[0]} failed: {said[:300]}", remedy or f"Try it in {where}.")


def _git(where: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Raises UsageError where git cannot be started, or does not answer in time."""
    own = {name: value for name, value in os.environ.items() if name not in POINTING}
    try:
        return subprocess.run(
            ["git", *NO_EMBEDDED, "-C", where, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GIT_TIMEOUT_S,
            env=own | {"LC_ALL": "C"} | environment,  # what it says is looked for in English
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"git cannot be run in {where}: {error}", "Try git status there.") from error
