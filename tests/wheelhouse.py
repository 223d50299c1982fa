"""A package index in a folder: small wheels, made here, so that no test needs a network."""

import base64
import hashlib
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

SLOW_BACKEND = '''\
"""A build backend that waits as long as a file is there."""
import pathlib, time, zipfile

METADATA = "Metadata-Version: 2.1\\nName: slow\\nVersion: 1.0\\n"
WHEEL = "Wheel-Version: 1.0\\nGenerator: tests\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"

def prepare_metadata_for_build_wheel(folder, config_settings=None):
    place = pathlib.Path(folder, "slow-1.0.dist-info")
    place.mkdir()
    (place / "METADATA").write_text(METADATA)
    (place / "WHEEL").write_text(WHEEL)
    return place.name

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
    """A wheel of one module, or of `files`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    content = {
        **(files if files is not None else {f"{name}/__init__.py": f"__version__ = {version!r}\n"}),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        lines = [f"{each},{_digest(text)}\n" for each, text in content.items()]
        for each, text in content.items():
            archive.writestr(each, text)
        archive.writestr(f"{info}/RECORD", "".join(lines) + f"{info}/RECORD,,\n")
    return path


def _digest(text: str | bytes) -> str:
    data = text.encode() if isinstance(text, str) else text
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={digest},{len(data)}"


def slow_source(folder: Path) -> Path:
    """Sources of `slow` 1.0, whose build makes a file `begun` there and waits while there is one `wait`."""
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (folder / "backend.py").write_text(SLOW_BACKEND)
    return folder


def variables(tmp_path: Path) -> dict[str, str]:
    """pip finds what is in `wheels` there and nothing else; environments go to `cache`."""
    return {
        "ACCELBENCH_CACHE": str(tmp_path / "cache"),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path / "wheels"),
        "PIP_CACHE_DIR": str(tmp_path / "pip"),
    }
