"""Secrets are not stored: canaries in the environment, addresses, paths and error texts."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchbench.errors import last_lines
from benchbench.launch.transport import Answer, Greeting
from benchbench.redaction import HIDDEN, redacted, redaction
from tests.program import accelbench, environment, records

CANARY = "canary-4711-value"
LEAKY = f"""
from dataclasses import dataclass
from benchbench.workloads.operations.gemm import Gemm as Whole

@dataclass(frozen=True)
class Leaky(Whole):
    def build_fake(self, device, arrays):
        raise RuntimeError("GET https://u:{CANARY}@example.com, as {CANARY}")
"""
LOCAL = """
from dataclasses import dataclass
from benchbench.workloads.operations.gemm import Gemm as Whole

@dataclass(frozen=True)
class Local(Whole):
    def build_fake(self, device, arrays):
        local = "-".join(("canary", "4711", "value"))
        read(local)

def read(local):
    raise OSError(f"/home/mine/data: {len(local)} characters, the token=4f9d0c1e77aa is not valid")
"""
INTERNAL = """
import os
import typer
from benchbench.cli.program import main

program = typer.Typer()

@program.command()
def fail() -> None:
    local = "-".join(("canary", "4711", "value"))
    raise ValueError(f"{len(local)} characters of {os.environ['MY_API_KEY']}")

main(lambda: program)
"""
REDACT = redaction({"MY_API_KEY": CANARY, "SHORT_TOKEN": "yes", "PLAIN": "visible"}, "/home/ada", "/srv/work")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cannot fetch https://ada:pa55@example.com/x.whl", "cannot fetch https://example.com/x.whl"),
        ("https://token@example.com", "https://example.com"),
        (f"answered 401 to {CANARY}.", f"answered 401 to {HIDDEN}."),
        ("yes, visible", "yes, visible"),
        ("password=hunter22 was refused", f"password={HIDDEN} was refused"),
        ('{"access_token": "abcdef"}', f'{{"access_token": "{HIDDEN}"}}'),
        ("Authorization: Bearer abc.def.ghi", f"Authorization: Bearer {HIDDEN}"),
        ("no file /home/ada/models/x.bin", "no file ~/models/x.bin"),
        ("no file /home/adam/x", "no file /home/adam/x"),
        ("/srv/work/own.py, line 3", "./own.py, line 3"),
        ("needs nncf (pip install -e '/opt/my src/bench[ov]')", "needs nncf (pip install -e '.[ov]')"),
        ("→ pip install '/home/ada/bench[torch]'", "→ pip install '.[torch]'"),
        ("pip install 'accelbench[jax]', /opt/x[0]", "pip install 'accelbench[jax]', /opt/x[0]"),
        ("gemm(m=64)/float32/eager@torch:cuda:0", "gemm(m=64)/float32/eager@torch:cuda:0"),
        ("mine(tokens_1=1024,max_token=16)/float32", "mine(tokens_1=1024,max_token=16)/float32"),
        ("9 tokens: 3 of them", "9 tokens: 3 of them"),
        ("1.23 ms, 45 token/s", "1.23 ms, 45 token/s"),
    ],
)
def test_secrets_are_removed_from_texts(text: str, expected: str) -> None:
    assert REDACT(text) == expected


@given(st.text())
def test_redacting_twice_is_redacting_once(text: str) -> None:
    assert REDACT(REDACT(text)) == REDACT(text)


def test_texts_are_redacted_at_any_depth_and_numbers_are_not() -> None:
    value = {"a": [CANARY, {"b": (CANARY,)}], "c": (1.0, 2.0), "d": None}
    assert redacted(value, REDACT) == {"a": [HIDDEN, {"b": [HIDDEN]}], "c": (1.0, 2.0), "d": None}


def test_secrets_in_worker_messages_are_hidden_on_arrival() -> None:
    outputs = f"password={CANARY}"
    outcome = {"status": "failed", "message": outputs, "log": f"line 1\n{outputs}"}
    sizes = {"text": [{"reason": outputs}]}
    answer = Answer(
        {"outcome": outcome, "described": {"mistake": outputs}, **sizes}, log=outputs, message=outputs
    )
    assert CANARY not in f"{answer} {Greeting(status='broken', reason=outputs)}"


def test_parameters_are_not_redacted() -> None:
    sizes = {"address": "https://user:password@example.com"}
    answer = Answer({"described": {"sizes": sizes}})
    assert answer.reply == {"described": {"sizes": sizes}}


def test_a_mistake_in_a_users_file_is_shown_without_its_secrets(tmp_path: Path) -> None:
    (tmp_path / "leaky.py").write_text(f"raise ValueError('password={CANARY}')\n")
    process = accelbench("list", "workloads", cwd=tmp_path, ACCELBENCH_WORKLOADS=str(tmp_path))
    assert f"password={HIDDEN}" in process.stdout + process.stderr
    assert CANARY not in process.stdout + process.stderr


def test_a_log_that_is_cut_begins_with_a_whole_line() -> None:
    text = f"password={CANARY}\nthe last line\n"
    assert last_lines(text, len(text) - 10) == "the last line\n"
    assert last_lines(text, len(text)) == text


def test_a_canary_in_every_place_is_found_in_no_stored_file(tmp_path: Path) -> None:
    workloads = tmp_path / "mine"
    workloads.mkdir()
    (workloads / "leaky.py").write_text(LEAKY)
    accelbench(
        *("run", "-w", "leaky", "-b", "fake", "--rounds", "1", "--tag", f"password={CANARY}"),
        cwd=tmp_path, code=4, ACCELBENCH_WORKLOADS=str(workloads), MY_API_KEY=CANARY,
    )  # fmt: skip
    files = [path for path in (tmp_path / "results").rglob("*") if path.is_file()]
    assert files
    for path in files:
        text = path.read_text(errors="replace")
        assert CANARY not in text, path
        assert str(tmp_path) not in text, path
    (records,) = (tmp_path / "results").rglob("records.jsonl")
    message = json.loads(records.read_text())["outcome"]["message"]
    assert message.startswith("RuntimeError: GET https://example.com")


def test_a_failure_with_an_undecodable_name_is_reported(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    body = LEAKY.replace(LEAKY[LEAKY.index("raise") :], 'raise RuntimeError("no file caf\\udce9.bin")\n')
    (tmp_path / "mine/leaky.py").write_text(body)
    workloads = {"ACCELBENCH_WORKLOADS": str(tmp_path / "mine")}
    accelbench("run", "-w", "leaky", "-b", "fake", "--rounds", "1", cwd=tmp_path, code=4, **workloads)
    (records,) = (tmp_path / "results").rglob("records.jsonl")
    assert json.loads(records.read_text())["outcome"]["message"] == "RuntimeError: no file caf?.bin"


@pytest.mark.real
def test_x15_canaries_are_found_in_no_output(tmp_path: Path) -> None:
    home, secrets = tmp_path / CANARY, {"MY_API_KEY": CANARY, "GIT_CEILING_DIRECTORIES": str(tmp_path)}
    (home / "mine").mkdir(parents=True)
    (home / "mine/leaky.py").write_text(LEAKY)
    subprocess.run(["git", "init", "-q", "."], cwd=home, check=True)
    remote = f"https://user:{CANARY}@example.com/x.git"
    subprocess.run(["git", "remote", "add", "origin", remote], cwd=home, check=True)
    environment: dict[str, Any] = secrets | {"ACCELBENCH_WORKLOADS": str(home / "mine")}
    tag, place = f"token={CANARY}", str(home / "results")
    measure = ("run", "-w", "leaky,gemm", "-b", "fake", "--rounds", "1", "--tag", tag, "--results", place)
    outputs = [accelbench(*measure, cwd=home, code=4, **environment)]
    verbs = ["report", "list runs", "history", "baseline set main --accept", "compare latest latest"]
    formats = ["junit", "github", "json", "csv", "markdown", "pytest-benchmark"]
    verbs += [f"export latest --to {name} -o out/{name}" for name in formats]
    outputs += [accelbench(*verb.split(), cwd=home, **environment) for verb in verbs]
    texts = {f"answer {number}": output.stdout + output.stderr for number, output in enumerate(outputs)}
    texts |= {
        str(path): path.read_text(errors="replace") for path in home.glob("[!.m]*/**/*") if path.is_file()
    }
    assert len(texts) > 15
    assert not [name for name, text in texts.items() if CANARY in text]


@pytest.mark.real
def test_x16_a_failure_keeps_its_traceback_without_secrets_and_local_variables(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/local.py").write_text(LOCAL)
    workloads = {"ACCELBENCH_WORKLOADS": str(tmp_path / "mine"), "HOME": "/home/mine"}
    options = ("-w", "local", "-b", "fake", "--rounds", "1")
    outputs = [
        accelbench("run", *options, cwd=tmp_path, code=4, **workloads),
        accelbench("report", cwd=tmp_path),
        accelbench("export", "latest", "--to", "junit", "-o", "out", cwd=tmp_path),
    ]
    texts = [output.stdout + output.stderr for output in outputs]
    texts += [path.read_text(errors="replace") for path in tmp_path.glob("[or]*/**/*") if path.is_file()]
    assert not [text for text in texts if CANARY in text or "4f9d0c1e77aa is" in text]
    (line,) = records(tmp_path)
    outcome = json.loads(line)["outcome"]
    assert outcome["message"] == "OSError: ~/data: 17 characters, the token=[redacted] is not valid"
    assert "Traceback (most recent call last)" in outcome["log"]
    assert "in read" in outcome["log"]
    assert outcome["log"].endswith(f"{outcome['message']}\n")


def test_x16_an_internal_error_shows_no_local_variables_or_secrets(tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERNAL]
    env = environment(TMPDIR=str(tmp_path), MY_API_KEY="another-secret")
    process = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert process.returncode == 70
    (details,) = tmp_path.glob("accelbench-error-*.txt")
    assert process.stderr == f"internal error: ValueError; details in {details}\n"
    assert details.read_text().endswith(f"ValueError: 17 characters of {HIDDEN}\n")
    assert CANARY not in details.read_text()


def test_a_very_long_secret_is_hidden() -> None:
    secret = "s" * 300
    assert redaction({"MY_TOKEN": secret}, "", "")(f"401: {secret}") == f"401: {HIDDEN}"


@pytest.mark.parametrize(
    "broken", ["__import__('tempfile').tempdir = '/nowhere'", "setattr(os, 'environ', None)"]
)
def test_an_internal_error_that_cannot_be_stored_shows_only_its_type(tmp_path: Path, broken: str) -> None:
    program = INTERNAL.replace(
        "    raise ValueError", f"    secret = os.environ['MY_API_KEY']; {broken}\n    raise ValueError"
    )
    program = program.replace("os.environ['MY_API_KEY']}", "secret}")
    process = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, env=environment(MY_API_KEY="another-secret"), capture_output=True, text=True,
    )  # fmt: skip
    assert (process.returncode, process.stdout, process.stderr) == (70, "", "internal error: ValueError\n")
