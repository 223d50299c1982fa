"""docs/questions.md and the README: their commands run, and the quoted answer is that of the stored run."""

import re
import shlex
from pathlib import Path

import pytest

from benchbench.documents.run import answer
from benchbench.store import runs
from benchbench.store.runs import read_run
from tests.factories import a_case, a_run, some_rounds
from tests.program import accelbench

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/questions.md").read_text()
COMMANDS = [
    shlex.split(line)[1:]
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]
OWN = {"my_model.py", "llama.json", "bench.py:loop"}  # files of the reader
STORED = {"report", "hardware", "doctor"}  # answered by a stored run, or without a run


@pytest.mark.parametrize("page", ["README.md", "docs/questions.md"])
def test_the_answer_is_that_of_the_committed_run(page: str) -> None:
    match = re.search(r"<!-- answer -->\n```\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert match
    assert match[1].splitlines() == answer(read_run(ROOT / "results/reference/2026-11-28-cpu-quick"))


@pytest.mark.real
@pytest.mark.parametrize(
    "command",
    [command for command in COMMANDS if command[0] == "run" and not OWN & set(command)],
    ids=" ".join,
)
def test_every_run_can_be_planned(command: list[str], tmp_path: Path) -> None:
    planned = [word for word in command if word != "--profile"]
    accelbench(*planned, "--dry-run", cwd=tmp_path, ACCELBENCH_WORKLOADS="")


@pytest.mark.real
@pytest.mark.parametrize("command", [command for command in COMMANDS if command[0] in STORED], ids=" ".join)
def test_stored_run_answers_each_command(command: list[str], tmp_path: Path) -> None:
    cases = [a_case(params={"batch": batch}) for batch in (1, 2, 4)]
    records = [record for case in cases for record in some_rounds(0.001, 0.00102, 0.00098, case=case)]
    runs.store_run(tmp_path / "results", a_run(records))
    accelbench(*command, cwd=tmp_path)


@pytest.mark.real
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_option_is_one_of_its_verb(command: list[str], tmp_path: Path) -> None:
    verb = command[:2] if command[0] == "env" else command[:1]
    output = accelbench(*verb, "--help", cwd=tmp_path, COLUMNS="200").stdout
    for word in command:
        if word.startswith("-"):
            assert re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", output), word
