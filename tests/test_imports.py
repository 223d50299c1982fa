"""No module of the package replaces what `benchbench` offers under its name."""

import subprocess
import sys

import pytest


@pytest.mark.real
def test_importing_every_module_does_not_shadow_functions() -> None:
    program = (
        "import pkgutil, importlib, benchbench\n"
        "for found in pkgutil.walk_packages(benchbench.__path__, 'benchbench.'):\n"
        "    if not found.name.endswith('__main__'):\n"
        "        importlib.import_module(found.name)\n"
        "from benchbench import api\n"
        "print(*[name for name in api.FUNCTIONS if not callable(getattr(benchbench, name))])\n"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert process.stdout.split() == []
