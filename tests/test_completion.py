"""What the shell completes: names of what there is, several by commas."""

from pathlib import Path
from typing import Any

import pytest

from benchbench.store import runs
from tests.factories import a_run
from tests.program import accelbench


def completed(folder: Path, line: str, **more: str) -> list[str]:
    """What bash offers for the last word."""
    words = line.split(" ")
    asked = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    variables: dict[str, Any] = {"_ACCELBENCH_COMPLETE": "complete_bash", **asked, **more}
    done = accelbench(cwd=folder, **variables)
    assert not done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("accelbench run --suite q", ["quick"]),
        ("accelbench run -w resn", ["resnet50_infer", "resnet50_train"]),
        ("accelbench run -b onnx", ["onnxruntime"]),
        ("accelbench run --dtype b", ["bfloat16"]),
        ("accelbench run --dtype float33", []),
        ("accelbench run --dtype float32,float6", ["float32,float64"]),
        ("accelbench run --mode cuda", ["cudagraph"]),
        ("accelbench run --cache c", ["cold"]),
        ("accelbench run --strategy f", ["fully-sharded"]),
        ("accelbench doctor --aa mem", ["memory"]),
        ("accelbench compare --only sl", ["slower"]),
        ("accelbench check --metric peak_d", ["peak_device_bytes"]),
        ("accelbench report --columns p99,p5", ["p99,p50"]),
        ("accelbench report --by dt", ["dtype"]),
        ("accelbench hardware --columns vs-f", ["vs-fastest"]),
        ("accelbench report --form", ["--format"]),
    ],
)
def test_names_are_completed(tmp_path: Path, line: str, offered: list[str]) -> None:
    assert completed(tmp_path, line) == offered


@pytest.mark.real
def test_what_was_measured_and_built_is_completed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere/baselines/main/machine").mkdir(parents=True)
    (tmp_path / "cache/envs/torch@old").mkdir(parents=True)
    run = a_run(id="20260102-030405-abcd")
    runs.keep(tmp_path / "elsewhere", run)

    assert completed(tmp_path, "accelbench report --results elsewhere 2026") == [run.info.id]
    assert completed(tmp_path, "accelbench report 2026", ACCELBENCH_RESULTS="elsewhere") == [run.info.id]
    assert completed(tmp_path, "accelbench compare --results elsewhere latest 2026") == [run.info.id]
    assert completed(tmp_path, "accelbench check --results elsewhere --baseline m") == ["main"]
    assert completed(tmp_path, "accelbench baseline show --results elsewhere m") == ["main"]
    for line in ("run -b torch@", "env rm torch@"):
        offered = completed(tmp_path, f"accelbench {line}", ACCELBENCH_CACHE=str(tmp_path / "cache"))
        assert offered == ["torch@old"]


def test_where_there_is_nothing_nothing_is_offered(tmp_path: Path) -> None:
    assert completed(tmp_path, "accelbench check --baseline m") == []
    assert completed(tmp_path, "accelbench report 2026") == []


ZZ = "class Zz{}(Base):\n    summary: str = 'x'\n"
FILES = {  # what a file of workloads holds → the names that are offered of it
    "one": ("class _Base(Gemm): pass\nclass Anything(_Base):\n    summary = 'x'\n", ["zz"]),
    "several": (
        f"class Base(Gemm): pass\n{ZZ.format('Infer')}{ZZ.format('Train')}",
        ["zz_infer", "zz_train"],
    ),
    "imported from elsewhere": ("from other import Zz\n", ["zz"]),
    "a mistake": ("class Zz(\n", ["zz"]),
    "too deep": ("x = " + "(" * 5000 + ")" * 5000, ["zz"]),
    "not text": ("\0", ["zz"]),
}


@pytest.mark.parametrize("kind", FILES)
def test_names_of_the_users_files_are_completed_without_importing_them(tmp_path: Path, kind: str) -> None:
    source, offered = FILES[kind]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/zz.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n{source}")
    (tmp_path / "mine/_zz.py").write_text("class Zz: pass\n")
    found = completed(tmp_path, "accelbench run -w zz", ACCELBENCH_WORKLOADS=str(tmp_path / "mine"))
    assert found == offered
    assert not (tmp_path / "ran").exists()
