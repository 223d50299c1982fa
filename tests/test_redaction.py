"""Secrets are not stored: canaries in the environment, addresses, paths and error texts."""

import getpass
import json
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchbench import api
from benchbench.analyse.rows import rows
from benchbench.errors import MAX_MESSAGE, CannotWrite, UsageError, last_lines, one_line
from benchbench.launch.transport import Answer, Greeting
from benchbench.machine.environment import is_hashed, name_hashes
from benchbench.model.case import Dtype, Status
from benchbench.model.measurement import Failure, Measurement
from benchbench.model.note import plain
from benchbench.model.run import Partner, Resumption
from benchbench.redaction import HIDDEN, redacted, redaction
from benchbench.store import runs
from benchbench.store.validation import validate_path
from tests.factories import (
    a_case,
    a_failure,
    a_left_out,
    a_measurement,
    a_probe,
    a_record,
    a_run,
    some_rounds,
)
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
    reply = {"outcome": outcome, "described": {"mistake": outputs}, **sizes}
    answer = Answer(reply, log=outputs, message=outputs)
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


# A run to share: the numbers stay, and the person and the machine cannot be identified

HOST, USER = socket.gethostname(), getpass.getuser()
CANARIES = ("canary", HOST, "/srv/", "/opt/", "10.1.2.3", "example.org")
TEXT = f"see /srv/canary/{USER}/x.py:3 and ~/canary, /opt/canary, on {HOST} by {USER}@example.org at 10.1.2.3"


def a_telling_run(root: Path) -> Path:
    """A run with a canary in every text that is not a name of a case."""
    first = a_case(environment={"XLA_FLAGS": "--canary-a"})
    second = a_case(environment={"XLA_FLAGS": "--canary-b"})
    records = [
        *some_rounds(1.0, 1.1, case=first),
        a_record(a_failure(message=TEXT, log=f"canary {TEXT}"), case=second),
    ]
    run = a_run(
        records,
        id="telling",
        command=("run", "--python", "torch=/srv/canary"),
        tags={"branch": "canary", "commit": "canary"},
        machine_id="canary",
        variables={"CC": "canary"},
        probes=(replace(a_probe(), reason=TEXT, missing=(("cuda", TEXT),)),),
        left_out=(a_left_out(reason=TEXT),),
        partner=Partner(label="rev:canary", run="canary", cases={}),
        resumed=(Resumption(started="2026-01-02T03:04:05Z", command=("canary",)),),
    )
    folder = runs.store_run(root, run)
    (folder / "artifacts").mkdir()
    (folder / "artifacts/canary.gz").write_text("canary")
    return folder


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    return api.share_run(a_telling_run(tmp_path / "results"), tmp_path / "shared").folder


@pytest.mark.real
def test_no_text_reveals_the_person_or_the_machine(shared: Path) -> None:
    assert sorted(path.name for path in shared.rglob("*")) == ["end.json", "records.jsonl", "run.json"]
    text = "\n".join(path.read_text() for path in shared.iterdir())
    assert [canary for canary in CANARIES if canary in text] == []


def test_shared_runs_keep_numbers_and_the_machine(tmp_path: Path, shared: Path) -> None:
    before, after = runs.read_run(tmp_path / "results/runs/telling"), runs.read_run(shared)
    assert validate_path(shared).faults == ()
    assert after.ended
    assert after.info.machine == before.info.machine
    assert (after.info.id, after.info.started, after.info.seed) == ("telling", before.info.started, 1)
    for old, new in zip(rows(before), rows(after), strict=True):
        assert (new.metrics, new.status, new.steps) == (old.metrics, old.status, old.steps)
    assert len({case.id for case in after.info.plan}) == len(before.info.plan) == 2


def test_equal_texts_get_equal_placeholders(shared: Path) -> None:
    lines = (shared / "records.jsonl").read_text().splitlines()
    messages = [json.loads(line)["outcome"].get("message") for line in lines]
    assert messages[-1] == (
        "see [path 1]:3 and [path 2], [path 3], on [name 1] by [address 1] at [address 2]"
    )


SECRETS = {
    "GitHub": f"ghp_{'a1B2' * 9}",
    "GitHub, fine-grained": f"github_pat_{'a1_B2' * 8}",
    "AWS": "AKIAIOSFODNN7EXAMPLE",
    "JWT": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJtZSJ9.dBjftJeZ4CVP-mB92K27",
    "GitLab": "glpat-" + "x1" * 10,
    "Hugging Face": "hf_" + "Ab3" * 11,
}
LEAKS = {  # text raised by a framework or by user code → pattern that must not remain
    **{name: (f"rejected {token} at login", token) for name, token in SECRETS.items()},
    "a token as an option": ("exit 1: tool --token hunter2 --batch 3", "hunter2"),
    "a password as an option": ("mount --db-password batch", "password batch"),
    "an address in capitals": ("mail Kim.Canary@Mail.Example.ORG", "Canary|Example|ORG"),
    "a host alone": ("cannot reach canary07.corp.example", "canary|corp"),
    "a path with blanks": ("no file /srv/My Canary Project/of Kim/data.npz", "Canary|Kim|data.npz"),
    "a quoted path with blanks": ("no file '/srv/My Canary Project'", "Canary|Project"),
    "Windows": (r"no file C:\Users\Kim Canary\data.npz", "Kim|Canary|Users"),
    "Windows, forward": ("no file D:/Users/Kim", "Kim|Users"),
    "UNC": (r"no file \\canary07\share\x", "canary|share"),
    "prose": ("patient John Miller of Acme was rejected", "John|Miller|Acme"),
    "Unicode": ("Zoë Ångström was here", "Zo|Ångström"),
    "IPv6": ("connect to fe80::1ff:fe23:4567:890a failed", "fe80|890a"),
}


def messages_of(folder: Path) -> list[str]:
    run = runs.read_run(folder)
    outcomes = [record.outcome for record in run.records]
    messages = [outcome.message for outcome in outcomes if isinstance(outcome, Failure)]
    messages += [
        note.text for outcome in outcomes if isinstance(outcome, Measurement) for note in outcome.notes
    ]
    for probe in run.info.probes:
        messages += [probe.reason, *(reason for _, reason in probe.missing)]
    return [*messages, *(out.reason for out in run.info.left_out)]


@pytest.mark.parametrize("name", LEAKS)
def test_text_of_other_programs_is_removed_from_messages(tmp_path: Path, name: str) -> None:
    text, pattern = LEAKS[name]
    run = a_run(
        [
            a_record(a_failure(status=Status.FAILED, message=f"RuntimeError: {text}"), case=a_case()),
            a_record(a_measurement(notes=(plain(text),)), case=a_case(dtype=Dtype.FLOAT64)),
        ],
        left_out=(a_left_out(reason=text),),
        probes=(replace(a_probe(), reason=text, missing=(("cuda", text),)),),
    )
    folder = runs.store_run(tmp_path / "results", run)
    messages = messages_of(api.share_run(folder, tmp_path / "shared").folder)
    assert messages[0].startswith("RuntimeError: ")
    assert [message for message in messages if re.search(pattern, message)] == []


OWN = (
    "killed by SIGKILL",
    "rank 1 of 2: killed by SIGKILL",
    "OutOfMemoryError: CUDA out of memory.",
    "relative error 0.0123 is above the tolerance 1e-5",
    "timed out after 300 s",
    "needs 12.5 GiB, and this machine has 8.0 GiB",
)


@pytest.mark.parametrize("text", OWN)
def test_text_of_accelbench_is_not_removed(tmp_path: Path, text: str) -> None:
    run = a_run([a_record(a_failure(message=text))])
    assert messages_of(api.share_run(runs.store_run(tmp_path / "a", run), tmp_path / "b").folder)[0] == text


def test_names_of_the_measuring_machine_are_removed_on_any_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "memory-node.corp.example")
    monkeypatch.setenv("LOGNAME", "sample")
    hashes = name_hashes()
    assert all(word not in "".join(hashes) for word in ("memory", "sample"))
    monkeypatch.undo()
    message = "MEMORY-node of Sample: the sample of a memory-node"
    run = a_run([a_record(a_failure(message=message))], name_hashes=hashes)
    folder = api.share_run(runs.store_run(tmp_path / "a", run), tmp_path / "b").folder
    assert messages_of(folder)[0] == "[name 1] of [name 2]: the [name 3] of a [name 4]"
    assert runs.read_head(folder).name_hashes == ()


@pytest.mark.real
def test_a_run_stores_hashes_of_host_and_user_names(tmp_path: Path) -> None:
    accelbench("run", "-b", "fake", "-w", "gemm", "--quick", "--rounds", "1", cwd=tmp_path)
    (head,) = (tmp_path / "results/runs").glob("*/run.json")
    assert is_hashed(HOST, runs.read_head(head.parent).name_hashes)
    assert HOST not in head.read_text()


def test_export_reports_how_much_of_each_kind_was_dropped(tmp_path: Path) -> None:
    a_telling_run(tmp_path / "results")
    lines = accelbench("export", "telling", "--share", "-o", "out", cwd=tmp_path).stderr.splitlines()
    assert lines[0].startswith("kept: 3 records of 2 cases")
    dropped = " ".join(line.removeprefix("dropped: ") for line in lines if line.startswith("dropped: "))
    assert {"command", "partner", "machine"} <= set(dropped.split())
    counts = {kind: int(number) for number, kind in re.findall(r"(\d+) (\w+)", dropped)}
    assert counts == {
        "tags": 2, "values": 3, "logs": 1, "other": 1, "paths": 3, "addresses": 2, "names": 1
    }  # fmt: skip
    refused = accelbench("export", "telling", "--share", "-o", "out", cwd=tmp_path, code=6).stderr
    assert "out: File exists" in refused


def test_a_shared_interrupted_run_is_still_interrupted(tmp_path: Path) -> None:
    folder = runs.store_run(tmp_path, a_run(some_rounds(1.0), id="cut"))
    (folder / "end.json").unlink()
    assert not runs.read_run(api.share_run(folder, tmp_path / "out").folder).ended


def test_a_user_named_like_a_backend_changes_no_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "torch")
    folder = runs.store_run(tmp_path, a_run(some_rounds(1.0), id="mine"))
    shared = api.share_run(folder, tmp_path / "out").folder
    assert runs.read_run(shared).records == runs.read_run(folder).records


def test_export_options_exclude_each_other(tmp_path: Path) -> None:
    runs.store_run(tmp_path / "results", a_run(id="mine"))
    for options in ([], ["--share", "--to", "csv", "-o", "x"], ["--share"]):
        accelbench("export", "mine", *options, cwd=tmp_path, code=2)
    with pytest.raises(CannotWrite):
        api.share_run(tmp_path / "results/runs/mine", tmp_path / "results")


# Failure messages

DATA_LOADER = """Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/tmp/data.py", line 6, in __getitem__
    try: {}["x"]
         ~~^^^^^
KeyError: 'x'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/site-packages/torch/utils/data/_utils/worker.py", line 374, in _worker_loop
    data = fetcher.fetch(index)
           ^^^^^^^^^^^^^^^^^^^^
ValueError: bad sample
second line
"""
GRAPH = """Graph execution error:

Detected at node StringToNumber defined at (most recent call last):
  File "/tmp/graph.py", line 6, in <module>

  File "/tmp/graph.py", line 5, in f

StringToNumberOp could not correctly convert string: a
\t [[{{node StringToNumber}}]] [Op:__inference_f_29]"""
COMPILER = "backend='inductor' raised:\nCppCompileError: C++ compile error\n\nCommand:\ng++"
EXPLAINED = "RuntimeError when making fake tensor call\n  Explanation: Dynamo failed: shape '[3]'\n  Hint: x"
HEADLINES = {  # real messages of torch and TensorFlow
    DATA_LOADER: "ValueError: bad sample (Caught ValueError in DataLoader worker process 0.)",
    GRAPH: "RuntimeError: StringToNumberOp could not correctly convert string: a (Graph execution error:)",
    COMPILER: "CppCompileError: C++ compile error (backend='inductor' raised:)",
    EXPLAINED: "RuntimeError: Dynamo failed: shape '[3]' (RuntimeError when making fake tensor call)",
    "plain\nand more": "RuntimeError: plain",
    "it ends here:": "RuntimeError: it ends here:",
    "cut off\nTraceback (most recent call last):\n  File": "RuntimeError: cut off",
    "": "RuntimeError",
}


@pytest.mark.parametrize("text", HEADLINES)
def test_the_innermost_wrapped_message_is_the_headline(text: str) -> None:
    assert one_line(RuntimeError(text)).strip() == HEADLINES[text]


@pytest.mark.parametrize("text", [RuntimeError("mute"), KeyboardInterrupt(), 3])
def test_an_error_without_readable_text_is_named_by_its_type(text: Any) -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            if isinstance(text, BaseException):
                raise text
            return text  # type: ignore[no-any-return]

    assert one_line(MuteError()).startswith("MuteError: ")


def test_the_cause_of_an_error_is_named_once() -> None:
    outer, inner = RuntimeError("no data"), FileNotFoundError(2, "No such file", "x.npz")
    outer.__cause__ = inner
    text = "RuntimeError: no data; caused by FileNotFoundError: [Errno 2] No such file: 'x.npz'"
    assert one_line(outer) == text
    inner.__cause__ = inner
    assert one_line(inner).count("FileNotFoundError") == 1
    inner.__cause__ = outer
    assert len(one_line(outer)) <= MAX_MESSAGE
    repeated = ValueError("no data")
    repeated.__cause__ = RuntimeError("no data")
    assert one_line(repeated).count("no data") == 2
    assert one_line(ExceptionGroup("several", [KeyError("x")])).endswith("caused by KeyError: 'x'")


def test_an_error_of_accelbench_shows_its_hint_instead_of_its_type() -> None:
    assert one_line(UsageError("There is no batch=9.", "-p batch=8 is the largest.")) == (
        "There is no batch=9. -p batch=8 is the largest."
    )
    raised = RuntimeError("no data")
    raised.__cause__ = UsageError("It has no array.")
    assert one_line(raised) == "RuntimeError: no data; caused by It has no array."


@pytest.mark.real
@pytest.mark.filterwarnings("ignore:os.fork")  # from JAX, if another test imported it
def test_the_error_of_a_data_loaders_worker_is_the_headline() -> None:
    data = pytest.importorskip("torch.utils.data")

    class Broken(data.Dataset):  # type: ignore[misc,name-defined]
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> int:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="DataLoader") as caught:
        next(iter(data.DataLoader(Broken(), num_workers=1)))
    assert one_line(caught.value).startswith("OSError: [Errno 28] No space left on device (Caught OSError")
