"""Read git: the current commit, the versions between two commits, and checkouts of the user's code."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchbench import paths
from benchbench.environments import interpreters
from benchbench.errors import AccelbenchWarning, UnreadableInput, UsageError
from benchbench.launch.project import UserCode
from benchbench.model import user_model
from benchbench.reading import MAX_TOML_BYTES, read_file
from benchbench.store import disk
from benchbench.store.disk import short

GIT_TIMEOUT_S = 120.0
POINTING = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")  # hooks set these, possibly to another repository
# Ignore a bare repository among the files of a commit: it could replace the repository around it.
NO_EMBEDDED = ("-c", "safe.bareRepository=explicit")
NO_REPOSITORY = "not a git repository (or any"  # other messages concern a broken repository
IN_A_REPOSITORY = (
    'Give --model my_model.py, or name your workloads in accelbench.toml: [code], workloads = ["folder"].'
)
GITLINK = "160000"  # the mode of a submodule in a tree


def current_commit(folder: str = ".") -> str:
    """Commit of the checkout that contains `folder`, with `-dirty` if tracked files were changed.

    Empty outside of a checkout and before the first commit. Raises UsageError if git fails.
    """
    if not (checkout := _checkout(folder)):
        return ""
    status = ("status", "--porcelain=v2", "--branch", "--untracked-files=no")
    output = _answer(checkout, *status, GIT_OPTIONAL_LOCKS="0")
    match = re.search(r"^# branch\.oid ([0-9a-f]{40,64})$", output, re.MULTILINE)
    if not match:
        return ""
    changed = any(not line.startswith("#") for line in output.splitlines())
    return disk.commit_name(match[1], dirty=changed)


def commit_tag() -> dict[str, str]:
    """Tag `commit` for the working folder, if it is in a checkout.

    If git fails, there is no tag but an AccelbenchWarning.
    """
    try:
        commit = current_commit()
    except UsageError as error:
        _warn_once(f"the tag commit is not set: {error}", error.hint)
        return {}
    return {disk.COMMIT: commit} if commit else {}


@cache
def _warn_once(text: str, hint: str) -> None:
    """Warn once, although a comparison creates several runs."""
    warnings.warn(AccelbenchWarning(text, hint), stacklevel=3)


@contextmanager
def code_at(revision: str, code: UserCode) -> Iterator[UserCode]:
    """Check out the user's code at a revision: every folder in a repository is replaced by its checkout.

    For a folder in a submodule, the outermost repository decides the submodule's commit. Raises UsageError if
    no workload is in a repository, a repository lacks the revision, a submodule lacks its commit, or git
    fails.
    """
    models = user_model.from_text(code.models)
    folders = [user_model.folder_of(spec) for spec in models.values()]
    roots = {
        folder: _root(folder) for folder in (*code.workloads, *code.python_path, *code.sources, *folders)
    }
    for spec in models.values():
        if not roots[user_model.folder_of(spec)]:
            raise UsageError(f"rev:{revision} needs {spec.text} in a git repository.", "Commit it to one.")
    if not any(roots[folder] for folder in (*code.workloads, *folders)):
        raise UsageError(
            f"rev:{revision} needs code of yours in a git repository: the shipped workloads do not change.",
            IN_A_REPOSITORY,
        )
    for spec in models.values():  # models may open or import files from their working folder
        if _root(spec.folder) == roots[user_model.folder_of(spec)]:
            roots[spec.folder] = roots[user_model.folder_of(spec)]
    with tempfile.TemporaryDirectory(prefix="accelbench-") as temporary:
        trees = {
            root: _tree(root, revision, Path(temporary) / str(number))
            for number, root in enumerate(dict.fromkeys(root for root in roots.values() if root))
        }
        new_paths = {
            folder: str(trees[root] / paths.resolved(folder).relative_to(root)) if root else folder
            for folder, root in roots.items()
        }
        yield UserCode(
            workloads=tuple(new_paths[folder] for folder in code.workloads),
            python_path=tuple(new_paths[folder] for folder in code.python_path),
            sources=tuple(new_paths[folder] for folder in code.sources),
            models=user_model.as_text(
                {name: user_model.moved(spec, new_paths) for name, spec in models.items()}
            ),
            variables=code.variables,
        )


@dataclass(frozen=True, slots=True)
class Commit:
    """Name of a commit and first line of its message."""

    name: str
    subject: str


def first_parents(good: str, bad: str, code: UserCode, more: Sequence[str] = ()) -> list[Commit]:
    """Commits from `good` to `bad` along first parents: a merge counts as one step.

    All of the user's code, and the folders `more`, must be in one repository. Raises UsageError, also if
    `good` is not an ancestor of `bad`.
    """
    folders = (*code.workloads, *code.python_path, *code.sources, *more)
    roots = {root for root in map(_root, folders) if root}
    if len(roots) != 1:
        locations = f"; yours is in {len(roots)}: {', '.join(sorted(roots))}" if roots else ""
        raise UsageError(
            f"A search of revisions needs your code in one git repository{locations}.", IN_A_REPOSITORY
        )
    (root,) = roots
    ends = {name: _commit(root, name) for name in (good, bad)}
    if ends[good] == ends[bad]:
        raise UsageError(f"{good} and {bad} are one commit.", f"git log --oneline {good} shows others.")
    if _git(root, "merge-base", "--is-ancestor", ends[good], ends[bad]).returncode:
        swapped = not _git(root, "merge-base", "--is-ancestor", ends[bad], ends[good]).returncode
        hint = f"{bad}..{good} is in order." if swapped else f"git merge-base {good} {bad} names one that is."
        raise UsageError(f"{good} is not an ancestor of {bad}.", hint)
    row = ("log", "--first-parent", "--reverse", "--format=%H %s", f"{ends[good]}..{ends[bad]}")
    lines = [_answer(root, "log", "-1", "--format=%H %s", ends[good]), *_answer(root, *row).splitlines()]
    return [Commit(*line.partition(" ")[::2]) for line in lines]


def content_at(revision: str, path: Path) -> bytes | None:
    """Content of a small file at a revision, or None if it did not exist.

    Outside of repositories, the current content. Raises UsageError, UnreadableInput.
    """
    here, unresolved = _root("."), Path(os.path.normpath(paths.absolute(path)))
    real = paths.resolved(path.parent) / path.name
    # The unresolved path comes first: a link in the repository may be newer than the revision.
    candidates = [(here, unresolved)] if here and unresolved.is_relative_to(here) else []
    if root := _root(str(next(folder for folder in real.parents if os.path.isdir(folder)))):
        candidates.append((root, real))
    if not candidates:
        return read_file(real, MAX_TOML_BYTES) if os.path.isfile(real) else None
    contents = (_blob(root, revision, file_path) for root, file_path in dict.fromkeys(candidates))
    return next((content for content in contents if content is not None), None)


def _blob(root: str, revision: str, path: Path) -> bytes | None:
    """Content of a small file at a revision, or None if the revision does not have it."""
    name = f"{_commit(root, revision)}:{path.relative_to(root).as_posix()}"
    if _git(root, "cat-file", "-e", name).returncode:
        return None
    if int(_answer(root, "cat-file", "-s", name)) > MAX_TOML_BYTES:
        raise UnreadableInput(f"{path} of {revision}: larger than {MAX_TOML_BYTES} bytes")
    return _git(root, "cat-file", "blob", name).stdout.encode()


def _checkout(path: str) -> str:
    """The nearest folder with a `.git`, from `path` upwards, or an empty text.

    Git's search would stop at a bare repository on the way, as old versions do despite `safe.bareRepository`.
    No commit can contain a `.git`.
    """
    here = paths.resolved(path)
    return next((str(parent) for parent in (here, *here.parents) if os.path.lexists(parent / ".git")), "")


def _root(path: str) -> str:
    """Root of the outermost repository around a folder, or an empty text."""
    if not os.path.isdir(path) or not (checkout := _checkout(path)):
        return ""
    root, outer = "", _answer(checkout, "rev-parse", "--show-toplevel")
    while outer:
        root = outer
        outer = _answer(root, "rev-parse", "--show-superproject-working-tree")
    return str(paths.resolved(root)) if root else ""


def _tree(root: str, revision: str, folder: Path) -> Path:
    """Check out a revision with its submodules, without untracked files."""
    git_dir = Path(_answer(root, "rev-parse", "--absolute-git-dir"))
    _check_out(Path(root), git_dir, _commit(root, revision), folder)
    return folder


def _commit(root: str, revision: str) -> str:
    """Commit that a revision names. Raises UsageError if there is none."""
    name = f"{revision}^{{commit}}"
    result = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", name)
    if result.returncode:
        is_shallow = _answer(root, "rev-parse", "--is-shallow-repository") == "true"
        deepen = "The clone is shallow: git fetch --deepen=100 there; in GitHub's checkout, fetch-depth: 0."
        hint = deepen if is_shallow else "git log --oneline lists them."
        raise UsageError(f"{root} has no revision {revision!r}.", hint)
    return result.stdout.strip()


def _check_out(root: Path, git_dir: Path, commit: str, tree: Path) -> None:
    """Check out a commit and those of its submodules into an empty folder.

    Each uses a temporary index, so that no worktree needs cleaning up and no file is left out as in an
    archive. `root`: current location of the files. A submodule that was never fetched stays an empty folder,
    as in a clone.
    """
    tree.mkdir(parents=True, exist_ok=True)
    environment = {"GIT_DIR": str(git_dir), "GIT_WORK_TREE": str(tree)}
    with tempfile.TemporaryDirectory(prefix="accelbench-") as index:
        environment["GIT_INDEX_FILE"] = f"{index}/index"
        _answer(str(tree), "read-tree", commit, **environment)
        _answer(str(tree), "checkout-index", "--all", **environment)
    for entry in _answer(str(tree), "ls-tree", "-r", "-z", commit, **environment).split("\0"):
        facts, _, name = entry.partition("\t")
        if not facts.startswith(GITLINK):
            continue
        inner, pinned = root / name, facts.split()[2]
        submodule_git_dir = (
            _git_dir(inner) or git_dir / "modules" / name
        )  # git's folder for a submodule that is not checked out now
        if not os.path.isdir(submodule_git_dir):
            continue
        if _git(
            str(tree), "cat-file", "-e", f"{pinned}^{{commit}}", GIT_DIR=str(submodule_git_dir)
        ).returncode:
            fetch = f"git --git-dir={submodule_git_dir} fetch origin {pinned}"
            raise UsageError(f"The submodule {inner} lacks the commit {pinned[:12]} of that revision.", fetch)
        _check_out(inner, submodule_git_dir, pinned, tree / name)


def _git_dir(folder: Path) -> Path | None:
    """Git folder of the repository whose root is `folder`, if it is one."""
    is_repository = os.path.exists(folder / ".git")
    return Path(_answer(str(folder), "rev-parse", "--absolute-git-dir")) if is_repository else None


def _answer(folder: str, *arguments: str, **environment: str) -> str:
    """Output of git without the last newline, empty outside of a repository. Raises UsageError if
    git fails.
    """
    process = _git(folder, *arguments, **environment)
    if process.returncode == 0:
        return process.stdout.removesuffix("\n")
    lines = [line.strip() for line in process.stderr.splitlines() if line.strip()]
    if any(NO_REPOSITORY in line for line in lines):
        return ""
    remedy = next((line for line in lines if line.startswith("git config")), "")
    message = lines[0].removeprefix("fatal: ") if lines else f"exit code {process.returncode}"
    raise UsageError(f"git {arguments[0]} failed: {message[:300]}", remedy or f"Try it in {folder}.")


def _git(folder: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run git. Raises UsageError if it cannot be started or exceeds the time limit."""
    variables = {name: value for name, value in os.environ.items() if name not in POINTING}
    try:
        return subprocess.run(
            ["git", *NO_EMBEDDED, "-C", folder, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GIT_TIMEOUT_S,
            env=variables | {"LC_ALL": "C"} | environment,  # messages are compared in English
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"git cannot be run in {folder}: {error}", "Try git status there.") from error


RELEASE = re.compile(r"[0-9]+(\.[0-9]+)*")
MOST_RELEASES = 1000  # releases in a range
RANGE = ".."
LIST_THEM = "Name them all, from good to bad: 2.9.1,2.10.0,2.11.0."


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A version: a `target`, whose environment may not exist yet, or a `revision`, a commit's full name.

    `label`: its name in output; `about`: further information.
    """

    label: str
    target: str = ""
    revision: str = ""
    about: str = ""


def releases(
    backend: str, text: str, pythons: Mapping[str, str], good: str = "", bad: str = ""
) -> list[Version]:
    """Parse releases such as `2.9..2.13` or `2.9,2.9.1,2.10`, possibly with names of targets; `good` comes
    first, `bad` last.

    A range counts up its last number. If its ends differ in another number, it contains the versions in
    between that have an interpreter. `pythons`: name → interpreter. Raises UsageError.
    """
    interpreters.split_name(backend)
    target_names = [
        name for name in (*pythons, *interpreters.environment_names()) if name.startswith(f"{backend}@")
    ]
    labels = [name.partition("@")[2] for name in target_names]
    typed = [part for part in (good, *text.split(","), bad) if part.strip()]
    row = [name for part in typed for name in _targets_of(backend, part.strip(), labels)]
    if duplicate := next((name for name in row if row.count(name) > 1), ""):
        raise UsageError(
            f"The version {duplicate} appears twice.", "Write each version once, from good to bad."
        )
    if len(row) < 2:
        raise UsageError(
            "A search needs at least two versions.", f"accelbench bisect {backend} 2.9{RANGE}2.13"
        )
    return [Version(label=name.removeprefix(f"{backend}@"), target=name) for name in row]


def _targets_of(backend: str, part: str, labels: Sequence[str]) -> list[str]:
    """Targets that one item of the list means."""
    if RANGE in part:
        low, _, high = part.partition(RANGE)
        return [f"{backend}@{label}" for label in _between(low, high, labels)]
    name = part if part.partition("@")[0] == backend else f"{backend}@{part}"
    interpreters.split_name(name)
    return [name]


def _between(low: str, high: str, labels: Iterable[str]) -> list[str]:
    """Labels of a range, in order: 2.9, 2.10, 2.11."""
    for end in (low, high):
        if not RELEASE.fullmatch(end):
            raise UsageError(f"{end!r} cannot be an end of a range.", LIST_THEM)
    first, last = _numbers(low), _numbers(high)
    if first >= last:
        raise UsageError(f"{low}{RANGE}{high} is not in order.", "The good version comes first.")
    if first[:-1] == last[:-1]:  # without labels such as 2.12.1, which may be what 2.12 installs
        if last[-1] - first[-1] > MOST_RELEASES:
            raise UsageError(f"{low}{RANGE}{high} are more than {MOST_RELEASES} versions.", LIST_THEM)
        return [".".join(map(str, (*first[:-1], number))) for number in range(first[-1], last[-1] + 1)]
    between = {label for label in labels if RELEASE.fullmatch(label) and first < _numbers(label) < last}
    if not between:
        raise UsageError(f"The versions between {low} and {high} are unknown.", LIST_THEM)
    return [low, *sorted(between, key=_numbers), high]


def _numbers(label: str) -> tuple[int, ...]:
    return tuple(map(int, label.split(".")))


def revisions(text: str, code: UserCode, folders: Sequence[str] = ()) -> list[Version]:
    """Parse `good..bad`: the commits between them along first parents; without `bad`, up to HEAD.

    `folders`: further folders with the user's code. Raises UsageError.
    """
    good, dots, bad = text.partition(RANGE)
    if not dots or not good.strip():
        raise UsageError(f"{text!r} is not a range of revisions.", f"accelbench bisect --rev v1.0{RANGE}HEAD")
    return [
        Version(label=short(commit.name), revision=commit.name, about=commit.subject)
        for commit in first_parents(good.strip(), bad.strip() or "HEAD", code, folders)
    ]
