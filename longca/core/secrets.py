"""Secrets in texts: passwords and tokens are replaced before a text is kept.

Records when they are written and read, logs, messages, and the settings, study and facts in a bundle go
through this module. Code in a bundle, whether the project's own or a plug-in's, is kept as it is.
"""

import os
import re
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

HIDDEN = "***"
FEWEST_CHARS = 8
"""of a variable's value that counts as a secret: shorter ones are words and numbers that any text may have"""

_NAME = (
    r"(?:pass(?:word|wd|phrase)|pwd|secret|(?:api|access|private|secret|account)[_-]?key"
    r"|(?:access|auth|refresh|id)[_-]?token|credentials?)"
)
_VARIABLE = re.compile(
    r"(?:^|_)(?:PASS(?:WORD|WD|PHRASE)?|SECRET|TOKEN|PAT|CREDENTIALS?|AUTH|(?:API|ACCESS|PRIVATE|SECRET|ACCOUNT)_?KEY(?:_ID)?)$"
    r"|PASSWORD|PASSWD|SECRET",
    re.IGNORECASE,
)
_HINTS = re.compile(
    r"://|(?i:pass|pwd|secret|key|token|cred|sig|bearer|basic )|gh[a-z]_|github_pat_|hf_|AKIA|glpat-|sk-|xox"
)
"""without any of these, no pattern below matches"""

_PATTERNS = [
    # scheme://user:password@host and scheme://token@host; docker://NAME@sha256:… has no user. A password may
    # hold "/" or "@", a port is none
    (
        r"(?P<keep>\b[A-Za-z][\w+.-]*://)(?:[^\s\"'\\<>/@]*:(?!\d+/)[^\s\"'\\<>]*|[^\s\"'\\<>/]+)@(?!sha256:)",
        rf"\g<keep>{HIDDEN}@",
    ),
    (
        rf"(?i)(?P<keep>[?&;][\w.-]*(?:{_NAME}|token|auth|key|sig|signature)=)[^\s\"'\\<>&;]+",
        rf"\g<keep>{HIDDEN}",
    ),
    (
        rf"(?i)(?P<keep>(?<![\w])--?[\w-]*(?:{_NAME}|token)[= ])[^\s\"'\\<>-][^\s\"'\\<>]*",
        rf"\g<keep>{HIDDEN}",
    ),
    (rf"(?P<keep>\b[A-Z0-9_]*(?:TOKEN|(?i:{_NAME}))=)[^\s\"'\\<>&]+", rf"\g<keep>{HIDDEN}"),
    (rf"(?i)(?P<keep>\b{_NAME}[\"']?\s*:\s*[\"']?)[^\s\"'\\<>,}}]{{4,}}", rf"\g<keep>{HIDDEN}"),
    (r"(?P<keep>\b(?i:bearer|basic) )[A-Za-z0-9._~+/=-]{8,}", rf"\g<keep>{HIDDEN}"),
    (
        r"\b(?:gh[pousr]_|github_pat_|hf_|glpat-|sk-|xox[abprs]-)[A-Za-z0-9_-]{16,}|\bAKIA[0-9A-Z]{16}\b",
        HIDDEN,
    ),
    (r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", HIDDEN),
]


@cache
def _compiled() -> list[tuple[re.Pattern[str], str]]:
    """Compiled at the first text that may hold a secret: most processes see none."""
    return [(re.compile(pattern), replacement) for pattern, replacement in _PATTERNS]


def without_secrets(text: str, environ: Mapping[str, str] | None = None) -> str:
    """The text with `***` for what looks like a secret: the user and password of a URL, a value behind a name
    like `password` or `HF_TOKEN`, tokens of a known form, private keys, and the values of variables of the
    environment that are named like secrets."""
    if not text:
        return text
    return _without(text, hidden_values(os.environ if environ is None else environ))


def _without(text: str, values: Sequence[str]) -> str:
    """The text without these values, and without what looks like a secret."""
    for value in values:
        if value in text:
            text = text.replace(value, HIDDEN)
    if _HINTS.search(text) is None:
        return text
    for pattern, replacement in _compiled():
        text = pattern.sub(replacement, text)
    return text


def data_without_secrets(data: Any) -> Any:
    """The same for every text of JSON data. Data without a secret are returned as they are, not copied."""
    values = hidden_values(os.environ)  # looked up once: a record has hundreds of texts
    return _data_without(data, values) if _has_secret(data, values) else data


def _has_secret(data: Any, values: Sequence[str]) -> bool:
    """True if a text of JSON data, be it a key, has a secret. Nothing is built: nearly all data have none."""
    parts = [data]
    texts = set[str]()
    while parts:
        part = parts.pop()
        if isinstance(part, str):
            texts.add(part)
        elif isinstance(part, dict):
            texts.update(part)
            parts.extend(part.values())
        elif isinstance(part, (list, tuple)):
            parts.extend(part)
    return any(_without(text, values) != text for text in texts)


def _data_without(data: Any, values: Sequence[str]) -> Any:
    if isinstance(data, str):
        return _without(data, values)
    if isinstance(data, dict):
        return {_without(key, values): _data_without(value, values) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return type(data)(_data_without(part, values) for part in data)
    return data


def bytes_without_secrets(content: bytes) -> bytes:
    """The same for the bytes of a text file in UTF-8; others stay as they are but for what they have of
    it."""
    text = content.decode("utf-8", "surrogateescape")
    hidden = without_secrets(text)
    return content if hidden is text or hidden == text else hidden.encode("utf-8", "surrogateescape")


def hidden_values(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The values of variables that are named like secrets, the longest first."""
    return _values_of(
        tuple(  # `items` would decode all values, which takes longer
            (name, value)
            for name in environ
            if _is_secret(name) and len(value := environ.get(name, "")) >= FEWEST_CHARS
        )
    )


@lru_cache(maxsize=8)
def _values_of(variables: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    return tuple(sorted({value for _, value in variables}, key=len, reverse=True))


@lru_cache(maxsize=4096)
def _is_secret(name: str) -> bool:
    return _VARIABLE.search(name) is not None
