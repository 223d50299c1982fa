"""Environments built as a user builds them, from wheels made here: no network."""

import json
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchbench import registry
from benchbench.backends.base import backend_class
from benchbench.environments import build, interpreters
from benchbench.environments.installer import (
    EMPTY_BYTES,
    UNPACKED,
    Download,
    build_of,
    check_room,
    measure_packages,
    pip_options,
)
from benchbench.errors import CannotWrite, UsageError
from tests.program import accelbench, environment, processes_mentioning, start_accelbench, wait_for
from tests.test_architecture import ROOT
from tests.wheelhouse import slow_source, variables, wheel

COPYING = """#!/bin/sh
if [ "$2 $3" = "-m venv" ]; then exec cp -a "{made}/." "$4"; fi
exec "{python}" "$@"
"""


@pytest.fixture(scope="module")
def copying(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python whose virtual environments are copies of one, since creating each takes four seconds."""
    folder = tmp_path_factory.mktemp("copying")
    subprocess.run([sys.executable, "-I", "-m", "venv", folder / "made"], check=True)
    program = folder / "python"
    program.write_text(COPYING.format(made=folder / "made", python=sys.executable))
    program.chmod(0o755)
    return str(program)


class Home:
    """A folder with wheels, including a stand-in for NumPy, and with environments built from `base`."""

    def __init__(self, path: Path, base: str = sys.executable) -> None:
        self.path = path
        self.base = base
        self.wheels = path / "wheels"
        self.environments = path / "cache" / "envs"
        self.variables = variables(path)
        wheel(self.wheels, "numpy", "9.9")

    def run(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        return accelbench(*arguments, cwd=self.path, code=code, **self.variables)

    def create(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        return self.run("env", "create", *arguments, "--base", self.base, code=code)

    def creating(self, *arguments: str) -> subprocess.Popen[str]:
        command = ("env", "create", *arguments, "--base", self.base)
        return start_accelbench(*command, cwd=self.path, env=environment(**self.variables))

    def listed(self, *options: str) -> list[dict[str, Any]]:
        data: list[dict[str, Any]] = json.loads(self.run("env", "list", "--format", "json", *options).stdout)
        return data


@pytest.fixture
def home(tmp_path: Path, copying: str) -> Home:
    return Home(tmp_path, copying)


CREATE = ("env", "create", "fake@own", "--with", "extra==1.2")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, str]:
    """A home with the environment fake@own, and the output of building it."""
    home = Home(tmp_path_factory.mktemp("built"))
    wheel(home.wheels, "extra", "1.2")
    return home, home.run(*CREATE).stderr


@pytest.mark.real
def test_downloads_are_announced_and_the_built_environment_is_listed(built: tuple[Home, str]) -> None:
    home, output = built
    assert output.index("nothing to download") < output.index("importing fake")
    (environment,) = home.listed()
    assert environment["health"] == "ready"
    assert environment["requirements"] == ["extra==1.2", "numpy"]
    assert environment["main"] == ["extra", "numpy"]
    assert environment["packages"].items() >= {"extra": "1.2", "numpy": "9.9"}.items()
    assert environment["bytes"] > 1_000_000
    assert home.listed("--check") == [environment]


@pytest.mark.real
def test_an_existing_environment_is_not_changed(built: tuple[Home, str]) -> None:
    home, _ = built
    record = home.environments / "fake@own" / "accelbench-env.json"
    before = record.stat().st_mtime_ns
    output = home.run(*CREATE).stdout
    assert output == home.run("env", "list").stdout
    assert "Did you mean 'fake@own'?" in home.run("env", "rm", "fake@own", "fake@owm", code=2).stderr
    process = home.run("env", "create", "fake@own", "--with", "extra==1.3", code=2)
    assert "exists already, with extra==1.2 numpy" in process.stderr
    program = home.path / "python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    elsewhere = home.run(*CREATE, "--base", str(program), code=2)
    assert f"exists already, created from {sys.executable}." in elsewhere.stderr
    assert record.stat().st_mtime_ns == before


@pytest.mark.real
def test_devices_lists_environments_and_a_worker_runs_in_them(built: tuple[Home, str]) -> None:
    home, _ = built
    data = json.loads(home.run("devices", "-b", "fake@own,fake", "--format", "json").stdout)
    assert [row["backend"] for row in data] == [*["fake@own"] * 5, *["fake"] * 5]
    assert {row["status"] for row in data} == {"ready"}


@pytest.mark.real
def test_an_interrupt_ends_pip_and_the_build_can_be_continued(home: Home) -> None:
    source = slow_source(home.path / "slow")
    (source / "wait").touch()
    process = home.creating("fake@slow", "--with", "./slow")
    wait_for((source / "begun").exists)
    assert [environment["health"] for environment in home.listed()] == ["building"]
    second = home.run("env", "create", "fake@slow", code=6)
    assert "being built or removed by another process" in second.stderr

    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert "interrupted: accelbench env create fake@slow continues from here" in errors
    assert not processes_mentioning(str(home.environments))
    assert [environment["health"] for environment in home.listed()] == ["incomplete"]
    request = json.loads((home.environments / "fake@slow" / build.REQUEST).read_bytes())
    assert request["requirements"] == [str(source), "numpy"]


@pytest.mark.real
def test_an_incomplete_environment_is_rebuilt_as_requested(home: Home) -> None:
    wheel(home.wheels, "extra", "1.2")
    folder = home.environments / "fake@own"
    half = folder / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages/extra-1.2.dist-info"
    half.mkdir(parents=True)
    (half / "METADATA").write_text("Metadata-Version: 2.1\nName: extra\nVersion: 1.2\n")
    request = {"name": "fake@own", "backend": "fake", "base": home.base, "chosen": True}
    (folder / build.REQUEST).write_text(json.dumps(request | {"requirements": ["extra==1.2", "numpy"]}))
    home.run("env", "create", "fake@own")
    (environment,) = home.listed()
    assert (environment["health"], environment["requirements"]) == ("ready", ["extra==1.2", "numpy"])
    assert (half.parent / "extra" / "__init__.py").exists()


@pytest.mark.real
def test_a_killed_build_stays_locked_until_pip_has_ended(home: Home) -> None:
    source = slow_source(home.path / "slow")
    (source / "wait").touch()
    process = home.creating("fake", "--with", "./slow")
    wait_for((source / "begun").exists)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    home.run("env", "rm", "fake", code=6)
    (source / "wait").unlink()
    wait_for(lambda: home.listed()[0]["health"] == "incomplete")
    home.run("env", "rm", "fake")
    assert home.listed() == []


@pytest.mark.nightly
@pytest.mark.real
def test_an_environment_whose_framework_fails_to_import_is_broken(home: Home) -> None:
    files = {"torch/__init__.py": "raise ImportError('libtorch.so: undefined symbol')\n"}
    wheel(home.wheels, "torch", "2.12.1", files)
    process = home.create("torch@2.12", "--variant", "cuda", code=7)
    assert "torch@2.12 is built, but torch cannot be used there: ImportError: libtorch.so" in process.stderr
    (environment,) = home.listed()
    assert environment["requirements"] == ["torch==2.12.*", "numpy"]
    assert (environment["health"], environment["packages"]["torch"]) == ("broken", "2.12.1")
    assert "undefined symbol" in environment["reason"]
    assert home.listed("--check") == [environment]
    run = home.run("run", "-b", "torch@2.12", "-w", "gemm", code=3)
    assert "undefined symbol → accelbench env create torch@2.12" in run.stderr


@pytest.mark.real
def test_the_error_quotes_pip(home: Home) -> None:
    process = home.create("fake", "--with", "nosuch==1", code=7)
    assert "No matching distribution found for nosuch==1" in process.stderr
    log = home.environments / "fake/pip.log"
    assert f"Its output is in {log}." in process.stderr
    assert "nosuch" in log.read_text()


def test_a_cache_that_cannot_be_written_is_an_error_before_anything_is_built(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, not a folder")
    process = accelbench(
        "env", "create", "fake", cwd=tmp_path, code=6, ACCELBENCH_CACHE=str(tmp_path / "cache")
    )
    assert "ACCELBENCH_CACHE names another folder" in process.stderr


def test_an_environment_without_free_space_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELBENCH_CACHE", str(tmp_path))
    check_room(Download(packages=(), free_bytes=2**30))
    with pytest.raises(CannotWrite, match=r"needs about 30\.0 MiB .*, 1\.00 MiB are free") as caught:
        check_room(Download(packages=(), free_bytes=2**20))
    assert "ACCELBENCH_CACHE" in caught.value.hint


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a server of the files in a folder."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http_server:
        thread = Thread(target=http_server.serve_forever, args=(0.01,))  # stops quickly
        thread.start()
        yield f"http://127.0.0.1:{http_server.server_port}"
        http_server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("url", "kind", "expected_bytes"),
    [
        ("{server}/big-1.0.whl", "archive_info", 100),
        ("{folder}/big-1.0.whl", "archive_info", 100),
        ("{server}/missing-1.0.whl", "archive_info", None),
        ("{folder}/missing-1.0.whl", "archive_info", None),
        ("ftp://127.0.0.1/big-1.0.whl", "archive_info", None),
        ("https://127.0.0.1/big.git", "vcs_info", None),
    ],
)
def test_a_package_has_the_size_of_its_file_or_none(
    tmp_path: Path, server: str, url: str, kind: str, expected_bytes: int | None
) -> None:
    (tmp_path / "big-1.0.whl").write_bytes(b"x" * 100)
    address = url.format(server=server, folder=tmp_path.as_uri())
    reported = {"metadata": {"name": "big", "version": "1.0"}, "download_info": {"url": address, kind: {}}}
    download = Download(packages=measure_packages([reported]), free_bytes=0)
    assert download.packages[0].bytes == expected_bytes
    assert download.unknown == (expected_bytes is None)
    assert download.disk_bytes == EMPTY_BYTES + round(UNPACKED * (expected_bytes or 0))
    assert download.packages[0].remote == (not address.startswith("file:"))


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELBENCH_CACHE", str(tmp_path))


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("torch@2.12", (), "cpu"),
        ("torch", ("torch==2.12.1",), "cpu"),
        ("onnxruntime", (), "cpu"),
        ("torch", ("torch==2.12.1+cu128",), ""),
        ("torch", ("torch @ https://example.com/torch-2.14-py3-none-any.whl",), ""),
        ("torch_xla", (), ""),  # its pins belong together
        ("jax", (), ""),
    ],
)
def test_environments_follow_the_cpu_build_of_the_running_torch(
    name: str, arguments: tuple[str, ...], expected: str
) -> None:
    assert build.build_request(name, arguments, running=lambda: "cpu").variant == expected
    assert build.build_request(name, arguments, running=str).variant == ""
    if name != "jax":
        assert build.build_request(name, arguments, variant="cu128", running=lambda: "cpu").variant == "cu128"


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize(
    ("name", "requirements", "variant", "expected"),
    [
        ("torch", (), "", ("torch", "numpy")),
        ("torch@2.12", (), "", ("torch==2.12.*", "numpy")),
        ("torch@2.12", ("torch==2.12.1",), "", ("torch==2.12.1", "numpy")),
        ("torch@old", ("torch<2", "numpy<2"), "", ("torch<2", "numpy<2")),
        ("torch@2.12", (), "cuda", ("torch==2.12.*", "numpy")),
        ("torch_xla@2.8", (), "", ("torch==2.8.*", "torch_xla==2.8.*", "numpy")),  # every pin
        ("fake@9", (), "", ("numpy==9.*",)),
        ("fake", ("./a.whl",), "", (f"{Path.cwd()}/a.whl", "numpy")),  # for pip
        ("jax", (), "cuda", ("jax[cuda13]", "numpy")),
        ("jax@0.10", (), "cuda13", ("jax[cuda13]==0.10.*", "numpy")),
        ("jax", (), "", ("jax", "numpy")),
        ("tensorflow", (), "cuda", ("tensorflow[and-cuda]", "numpy")),
        ("tensorflow@2.21", (), "cpu", ("tensorflow-cpu==2.21.*", "numpy")),
        ("onnxruntime", (), "cuda", ("torch", "onnxruntime-gpu[cuda,cudnn]", "onnx", "onnxscript", "numpy")),
        ("onnxruntime@1.26", (), "", ("torch", "onnxruntime==1.26.*", "onnx", "onnxscript", "numpy")),
        ("openvino@2026.3", (), "", ("torch", "openvino==2026.3.*", "onnx", "onnxscript", "numpy")),
    ],
)
def test_requirements_follow_the_label_and_the_variant_unless_overridden(
    name: str, requirements: tuple[str, ...], variant: str, expected: tuple[str, ...]
) -> None:
    request = build.build_request(name, requirements, variant=variant, running=str)
    assert request.requirements == expected
    assert request.torch_build == (variant if "torch" in " ".join(expected) else "")


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize(
    ("name", "requirements", "variant", "message"),
    [
        ("torch@nightly", (), "", "is not a version"),
        ("torch", ("--pre",), "", "is no requirement"),
        ("torch", (" ",), "", "is no requirement"),
        ("pytorch@2", (), "", "No backend named 'pytorch'"),
        ("torch@../x", (), "", "no label"),
        ("jax", (), "cu128", "jax has no build 'cu128'"),
        ("jax", ("jax==0.9.0",), "cuda", "so does --variant"),
    ],
)
def test_an_invalid_request_is_refused(
    name: str, requirements: tuple[str, ...], variant: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        build.build_request(name, requirements, variant=variant)
    if variant == "cu128":
        assert refused.value.hint == "Builds are cpu, cuda, cuda12, cuda13, tpu."


@pytest.mark.parametrize("name", ["jax", "tensorflow", "onnxruntime"])
def test_the_cuda_extra_and_the_page_match_the_build(name: str) -> None:
    kind = backend_class(name)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    requirements = [re.split("[>;]", extra)[0] for extra in extras[f"{name}-cuda"]]
    assert [*requirements, "numpy"] == list(kind.builds["cuda"])
    (line,) = [
        line
        for line in (ROOT / "docs/environments.md").read_text().splitlines()
        if f"'.[{name}-cuda]'" in line
    ]
    assert any(f"`{requirement}`" in line for requirement in requirements if requirement.startswith(name))


def test_the_build_of_torch_is_read_from_its_version() -> None:
    builds = {
        version: build_of(version) for version in ("2.13.0+cpu", "2.13.0", "2.13.0+cu128", "2.9.0+rocm6.4")
    }
    assert list(builds.values()) == ["cpu", "", "cu128", "rocm6.4"]
    assert [pip_options(build_name) for build_name in ("", "cuda")] == [[], []]
    assert pip_options("cpu")[1].endswith("/cpu")


@pytest.mark.real
def test_only_the_chosen_build_of_torch_is_downloaded(home: Home) -> None:
    wheel(home.wheels, "torch", "2.12.1")
    absent = home.create("torch@2.12", "--variant", "cpu", code=7)
    assert "pip finds no build for cpu of torch==2.12.*, only torch 2.12.1, " in absent.stderr
    hint = absent.stderr.partition("hint: ")[2]
    assert hint.startswith("PIP_EXTRA_INDEX_URL names an index with cpu builds; --variant cuda takes that")
    wheel(home.wheels, "torch", "2.12.1+cpu")
    process = home.create("torch@2.12", "--variant", "cpu", code=7)  # these wheels cannot be imported
    assert "torch==2.12.*, numpy, torch's build for cpu (--variant)" in process.stderr
    (listed,) = home.listed()
    assert listed["packages"]["torch"] == "2.12.1+cpu"
    assert "torch has no build 'gpu'" in home.create("torch@2.12", "--variant", "gpu", code=2).stderr


@given(st.text())
def test_accepted_names_are_safe_folder_names(text: str) -> None:
    for name in (text, f"torch@{text}"):
        try:
            backend, label = interpreters.split_name(name)
        except UsageError:
            continue
        assert name == (f"{backend}@{label}" if label else backend)
        assert Path(name).name == name
        assert not name.startswith(".")


@pytest.mark.usefixtures("nowhere")
def test_create_commands_of_the_documentation_are_valid() -> None:
    commands = re.findall(r"^accelbench env create (.*)", (ROOT / "docs/environments.md").read_text(), re.M)
    assert commands
    for command in commands:
        name, *options = shlex.split(command, comments=True)
        if name.partition("@")[0] in registry.entry_names("benchbench.backends"):
            build.build_request(name, [value for flag, value in pairwise(options) if flag == "--with"])
