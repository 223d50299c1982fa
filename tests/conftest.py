"""Settings every test shares."""

import gc
import importlib
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings

# A busy machine must not fail a test: no property here is about time.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# The user's settings, hidden from tests and the processes they start.
FOREIGN = re.compile(
    r"ACCELBENCH_(?!TEST_)|LC_|(LANG|LANGUAGE|TZ|COLUMNS|LINES|NO_COLOR|FORCE_COLOR|TERM_PROGRAM)$"
    r"|PYTHON(WARNINGS|DONTWRITEBYTECODE|OPTIMIZE|UNBUFFERED|IOENCODING|UTF8)$"
)
for variable in filter(FOREIGN.match, [*os.environ]):
    del os.environ[variable]
os.environ["LANG"] = "C.UTF-8"
time.tzset()
sys.dont_write_bytecode = False  # modules and tests are compiled once, not in each process

# Set before NumPy is imported: products of references are small, and idle threads would burn four times the
# CPU time.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

THREADS = 2  # TensorFlow's number of threads cannot be changed once it has computed


class WithThreads(Loader):
    """Import TensorFlow and set its threads before any test can use it.

    Triton, which torch.compile imports, must come first: loaded later, its LLVM ends the process.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        with suppress(ImportError):
            importlib.import_module("triton")
        self._loader.exec_module(module)
        module.config.threading.set_intra_op_parallelism_threads(THREADS)


class TensorFlowFinder(MetaPathFinder):
    """Apply `WithThreads` to the first import of TensorFlow, whichever test that is in."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        spec = PathFinder.find_spec(name, path, target) if name == "tensorflow" else None
        if spec and spec.loader:
            spec.loader = WithThreads(spec.loader)
        return spec


sys.meta_path.insert(0, TensorFlowFinder())


@pytest.fixture(scope="session")
def shared_references(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """References shared by all processes of this test session."""
    from tests.verifying import SharedReferences  # after the settings above

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "references"
    folder.mkdir(exist_ok=True)
    return SharedReferences(folder)


@pytest.fixture(scope="module")
def verifier(shared_references: Any) -> Iterator[Any]:
    """A verifier whose workers stay from test to test and do not see a test's environment variables."""
    with _open_verifier(shared_references) as pools:
        yield pools


@pytest.fixture
def fresh_verifier(shared_references: Any) -> Iterator[Any]:
    """A verifier whose workers start on first use, with the test's environment variables."""
    with _open_verifier(shared_references) as pools:
        yield pools


@pytest.fixture(scope="module")
def stored_references(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """References of user models are stored from test to test, as in a run."""
    from benchbench import registry

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(registry.DRAWN, str(tmp_path_factory.mktemp("drawn")))
        yield


@contextmanager
def _open_verifier(shared_references: Any) -> Iterator[Any]:
    from benchbench.model.run import Settings
    from tests.verifying import Verifier

    with ExitStack() as stack:
        yield Verifier(stack, shared_references, Settings(threads=2))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect nightly tests unless `-m` names them.

    Under `pytest -n` the unmarked tests of a file share a process and its imports.
    """
    if "nightly" not in config.option.markexpr:
        nightly = [item for item in items if item.get_closest_marker("nightly")]
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=nightly)
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


def pytest_collection_finish() -> None:
    """Exempt the collected tests from garbage collection; keep freed memory for references, as workers do."""
    from benchbench.worker.reference import keep_freed_memory  # NumPy, with its threads as set above

    gc.freeze()
    keep_freed_memory()
