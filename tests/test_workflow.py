"""The workflow that docs/ci.md offers: what it runs is what is documented, and nothing can be put into it."""

import re
from textwrap import dedent

import pytest

from tests.test_architecture import ROOT

DOCUMENT = (ROOT / "docs/ci.md").read_text()
WORKFLOW = (ROOT / ".github/workflows/accelbench.yml").read_text()
ACTION = (ROOT / ".github/actions/accelbench/action.yml").read_text()


def documented(name: str) -> str:
    found = re.search(rf"<!-- ci: {name} -->\n```sh\n(.*?)```", DOCUMENT, re.DOTALL)
    assert found, name
    return found[1]


def commands(job: str) -> str:
    """The shell of a job of the workflow."""
    body = WORKFLOW[WORKFLOW.index(f"\n  {job}:") :]
    found = re.search(r"commands: \|\n((?: {12}.*\n)+)", body)
    assert found, job
    return dedent(found[1])


@pytest.mark.parametrize("job", ["pull-request", "nightly"])
def test_a_job_runs_what_is_documented(job: str) -> None:
    assert commands(job) == documented(job)


def test_no_expression_becomes_part_of_a_script() -> None:
    shell = [*re.findall(r"run: (.*)", WORKFLOW + ACTION), commands("pull-request"), commands("nightly")]
    assert len(shell) == 4
    assert not any("${{" in line for line in shell)


def test_the_gate_needs_no_secret_and_writes_nothing() -> None:
    assert "permissions:\n  contents: read" in WORKFLOW
    assert "write" not in WORKFLOW
    assert not re.search(r"secrets\.|token:|GITHUB_TOKEN", WORKFLOW + ACTION)
    assert WORKFLOW.count("actions/checkout@") == WORKFLOW.count("persist-credentials: false")
