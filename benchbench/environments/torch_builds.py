"""Which build of torch an environment gets: that for CPUs, or one for a vendor's accelerators.

A build is the local part of torch's version (PEP 440): `2.12.1+cpu`, `2.12.1+cu128`. On Linux those without
one, which the general package index has, are for CUDA. Each other build has an index of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from benchbench.environments.wheels import Download
from benchbench.errors import CannotBuild, UsageError
from benchbench.format import size

INDEX = "https://download.pytorch.org/whl"  # pytorch.org/get-started: a folder per build
GENERAL = "cuda"  # the build of the general index
BUILD = re.compile(rf"cpu|{GENERAL}|cu[0-9]{{3}}|rocm[0-9]+(\.[0-9]+)+|xpu")


def check_build(text: str) -> str:
    """Raises UsageError for what names no build."""
    if not BUILD.fullmatch(text):
        raise UsageError(f"torch has no build {text!r}.", "Builds are cpu, cuda, cu128, rocm6.4, xpu.")
    return text


def running_build() -> str:
    """Of the torch that is installed beside accelbench; "" where there is none or it does not say."""
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
                f"--variant {other} takes that; PIP_EXTRA_INDEX_URL names an index with others.",
            )
