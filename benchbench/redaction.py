"""Secrets in texts: credentials and values of secret variables, and in what is stored, paths of this machine.

Error texts quote addresses with passwords, paths and settings; screens, logs of CI services and runs are seen
by others. So what another process says passes `hide_in_message` when it arrives, and every text passes a
redaction again on its way into a file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from benchbench import paths

Redaction = Callable[[str], str]

HIDDEN = "[redacted]"
SHORTEST = 6  # characters of a secret that is looked for: `1` or `yes` stands in many texts
ADDRESS = re.compile(r"(?<=://)[^/\s@'\"]+@")  # user:password@ of an address
NAMED = re.compile(  # password=…, "token": "…", Authorization: Bearer …
    r"(?i)\b(?![\w-]*token[\w-]*=\d{1,6}[,)])"  # no size of a case, as in my_model(max_tokens=128)
    r"([\w-]*(?:password|passwd|secret|token|api[_-]?key|access[_-]?key|credential)[\w-]*"
    r"[\"']?\s*[=:]\s*[\"']?|bearer\s+)[^\s\"',;&]{4,}"
)
OPTION = re.compile(  # --token x, --db-password x
    r"(?i)((?:^|(?<=\s))--?[\w-]*(?:password|passwd|secret|token|api-?key|access-?key|credentials?)\s+)"
    r"(?!-)[^\s\"',;&]+"
)
TOKENS = re.compile(  # secrets by their shape: of GitHub, GitLab, AWS, Slack, Google, Hugging Face; JWT
    r"\b(?:gh[opusr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|xox[abeoprs]-[\w-]{10,}|AIza[\w-]{35}|hf_[A-Za-z0-9]{30,}|sk-[\w-]{20,}"
    r"|eyJ[\w-]{5,}\.[\w-]{5,}\.[\w-]*)"
)
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|COOKIE|SIGNATURE", re.IGNORECASE)


def redaction(environment: Mapping[str, str], home: str, folder: str) -> Redaction:
    """A function of texts that hides secrets; `home` becomes `~` and `folder`, the working directory, `.`."""
    values = {
        value
        for name, value in environment.items()
        if SECRET.search(name) and len(value) >= SHORTEST and not os.path.exists(value)
    }
    hidden = re.compile("|".join(map(re.escape, sorted(values, key=len, reverse=True)))) if values else None
    paths = [(_path(path), short) for path, short in ((folder, "."), (home, "~")) if len(path) > 1]

    def redact(text: str) -> str:
        text = TOKENS.sub(HIDDEN, ADDRESS.sub("", text))
        text = OPTION.sub(rf"\1{HIDDEN}", NAMED.sub(rf"\1{HIDDEN}", text))
        text = hidden.sub(HIDDEN, text) if hidden else text
        for path, short in paths:
            text = path.sub(short, text)
        return text

    return redact


# The fields of messages whose texts a user's code, a framework or a worker's output may have written. Others
# are data: a parameter's value must arrive as it is.
TEXT_FIELDS = frozenset(
    {
        *("message", "log", "reason", "fault", "text", "hint", "mistake", "refused", "unverified", "summary"),
        *("missing", "missing_modes", "lacking", "refused_dtypes"),
    }
)


def hide_secrets() -> Redaction:
    """The redaction of credentials alone, for this process's environment: paths stay as they are."""
    return redaction(os.environ, "", "")


def hide_in_message(message: Any) -> Any:
    """A message of another process, with secrets hidden in its texts."""
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


def own_redaction() -> Redaction:
    """The redaction for this process's environment, home and working directory."""
    return redaction(os.environ, paths.home(), paths.working_folder())


def _path(path: str) -> re.Pattern[str]:
    """`path` and not one that merely begins like it."""
    return re.compile(rf"(?<![\w/]){re.escape(path)}(?![\w.-])")


def redacted(value: object, redact: Redaction) -> object:
    """JSON values with every text redacted, names of fields left alone; numbers are not looked at."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {name: redacted(each, redact) for name, each in value.items()}
    if isinstance(value, list | tuple) and value and isinstance(value[0], str | dict | list | tuple):
        return [redacted(each, redact) for each in value]
    return value
