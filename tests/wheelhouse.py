"""A package index in a folder, filled with small wheels, so that tests need no network."""

import base64
import hashlib
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

SLOW_BACKEND = '''\
"""A build backend that waits while a file exists."""
import pathlib, time, zipfile

METADATA = "Metadata-Version: 2.1\\nName: slow\\nVersion: 1.0\\n"
WHEEL = "Wheel-Version: 1.0\\nGenerator: tests\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"

def prepare_metadata_for_build_wheel(folder, config_settings=None):
    info = pathlib.Path(folder, "slow-1.0.dist-info")
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    (info / "WHEEL").write_text(WHEEL)
    return info.name

def build_wheel(folder, config_settings=None, metadata_directory=None):
    here = pathlib.Path(__file__).parent
    (here / "begun").touch()
    while (here / "wait").exists():
        time.sleep(0.05)
    with zipfile.ZipFile(pathlib.Path(folder, "slow-1.0-py3-none-any.whl"), "w") as wheel:
        wheel.writestr("slow.py", "")
        wheel.writestr("slow-1.0.dist-info/METADATA", METADATA)
        wheel.writestr("slow-1.0.dist-info/WHEEL", WHEEL)
        wheel.writestr("slow-1.0.dist-info/RECORD", "")
    return "slow-1.0-py3-none-any.whl"
'''


def wheel(folder: Path, name: str, version: str, files: Mapping[str, str | bytes] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    content = {
        **(files if files is not None else {f"{name}/__init__.py": f"__version__ = {version!r}\n"}),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        lines = [f"{file},{_digest(text)}\n" for file, text in content.items()]
        for file, text in content.items():
            archive.writestr(file, text)
        archive.writestr(f"{info}/RECORD", "".join(lines) + f"{info}/RECORD,,\n")
    return path


def _digest(text: str | bytes) -> str:
    data = text.encode() if isinstance(text, str) else text
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={digest},{len(data)}"


def slow_source(folder: Path) -> Path:
    """Write the sources of `slow` 1.0, whose build creates the file `begun` and waits while `wait` exists."""
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (folder / "backend.py").write_text(SLOW_BACKEND)
    return folder


def variables(tmp_path: Path) -> dict[str, str]:
    """Variables that limit pip to the folder `wheels` and put environments into `cache`."""
    return {
        "ACCELBENCH_CACHE": str(tmp_path / "cache"),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path / "wheels"),
        "PIP_CACHE_DIR": str(tmp_path / "pip"),
    }
