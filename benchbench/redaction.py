"""Redaction of texts: credentials, values of secret variables, and in stored texts, paths of this machine.

Error messages may quote addresses with passwords, paths and settings, and others see screens, logs of CI
services and runs. So `hide_in_message` redacts messages of other processes on arrival, and every text is
redacted again before it is stored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from benchbench import paths

Redaction = Callable[[str], str]

HIDDEN = "[redacted]"
MIN_SECRET_LENGTH = 6  # characters; many texts contain `1` or `yes`
ADDRESS = re.compile(r"(?<=://)[^/\s@'\"]+@")  # user:password@ in an address
NAMED = re.compile(  # password=…, "token": "…", Authorization: Bearer …
    r"(?i)\b(?![\w-]*token[\w-]*=\d{1,6}[,)])"  # no size of a case, as in my_model(max_tokens=128)
    r"([\w-]*(?:password|passwd|secret|token|api[_-]?key|access[_-]?key|credential)[\w-]*"
    r"[\"']?\s*[=:]\s*[\"']?|bearer\s+)[^\s\"',;&]{4,}"
)
OPTION = re.compile(  # --token x, --db-password x
    r"(?i)((?:^|(?<=\s))--?[\w-]*(?:password|passwd|secret|token|api-?key|access-?key|credentials?)\s+)"
    r"(?!-)[^\s\"',;&]+"
)
TOKENS = re.compile(  # secrets with a known form: GitHub, GitLab, AWS, Slack, Google, Hugging Face; JWT
    r"\b(?:gh[opusr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|xox[abeoprs]-[\w-]{10,}|AIza[\w-]{35}|hf_[A-Za-z0-9]{30,}|sk-[\w-]{20,}"
    r"|eyJ[\w-]{5,}\.[\w-]{5,}\.[\w-]*)"
)
# The folder in an advice to install an extra, as of `install_line`: `pip install -e '/src/accelbench[torch]'`
CHECKOUT = re.compile(r"(pip install (?:-e )?'?)/[^'\[]*(?=\[)")
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|COOKIE|SIGNATURE", re.IGNORECASE)


def redaction(environment: Mapping[str, str], home: str, folder: str) -> Redaction:
    """A function that hides secrets in a text, and replaces `home` by `~` and the folder `folder` by `.`.

    With either path, it also replaces the checkout in a command that installs an extra by `.`.
    """
    values = {
        value
        for name, value in environment.items()
        if SECRET.search(name) and len(value) >= MIN_SECRET_LENGTH and not os.path.exists(value)
    }
    hidden = re.compile("|".join(map(re.escape, sorted(values, key=len, reverse=True)))) if values else None
    paths = [(_path(path), short) for path, short in ((folder, "."), (home, "~")) if len(path) > 1]

    def redact(text: str) -> str:
        text = TOKENS.sub(HIDDEN, ADDRESS.sub("", text))
        text = OPTION.sub(rf"\1{HIDDEN}", NAMED.sub(rf"\1{HIDDEN}", text))
        text = hidden.sub(HIDDEN, text) if hidden else text
        text = CHECKOUT.sub(r"\1.", text) if paths else text
        for path, short in paths:
            text = path.sub(short, text)
        return text

    return redact


# Fields of messages with texts that may come from a user's code, a framework or a worker's output. Other
# fields are data: a parameter's value must not change.
TEXT_FIELDS = frozenset(
    {
        *("message", "log", "reason", "fault", "text", "hint", "mistake", "refused", "unverified", "summary"),
        *("missing", "missing_modes", "unsupported", "refused_dtypes"),
    }
)


def hide_secrets() -> Redaction:
    """The redaction of credentials only, for this process's environment; paths are unchanged."""
    return redaction(os.environ, "", "")


def hide_in_message(message: Any) -> Any:
    """Hide secrets in the texts of another process's message."""
    return _with_texts_hidden(message, hide_secrets())


def _with_texts_hidden(value: Any, redact: Redaction) -> Any:
    if isinstance(value, dict):
        return {
            name: redacted(part, redact) if name in TEXT_FIELDS else _with_texts_hidden(part, redact)
            for name, part in value.items()
        }
    if isinstance(value, list) and value and isinstance(value[0], dict | list):
        return [_with_texts_hidden(part, redact) for part in value]
    return value


def process_redaction() -> Redaction:
    """The redaction for this process's environment, home and working directory."""
    return redaction(os.environ, paths.home(), paths.working_folder())


def _path(path: str) -> re.Pattern[str]:
    """A pattern for `path` that does not match longer names with the same start."""
    return re.compile(rf"(?<![\w/]){re.escape(path)}(?![\w.-])")


def redacted(value: object, redact: Redaction) -> object:
    """JSON values with every text redacted, except names of fields."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {name: redacted(item, redact) for name, item in value.items()}
    if isinstance(value, list | tuple) and value and isinstance(value[0], str | dict | list | tuple):
        return [redacted(item, redact) for item in value]
    return value
