"""Parsing and formatting of lengths ("8K") and head counts ("64:8")."""

import re

from longca.core.errors import shortened

MOST_SHOWN = 80  # characters of a wrong value

_LENGTH = re.compile(r"([0-9]{1,30})\s*([kKmM]?)")
_HEADS = re.compile(r"\s*([0-9]{1,30})\s*(?::\s*([0-9]{1,30})\s*)?")
_FACTOR = {"": 1, "k": 1024, "m": 1024 * 1024}


def parse_length(text: int | str) -> int:
    """Tokens: 8192, "8192" or "8K" (K = 1024, M = 1024²). Raises ValueError for anything else, and below
    1."""
    match = _LENGTH.fullmatch(str(text).strip())
    value = int(match[1]) * _FACTOR[match[2].lower()] if match and not isinstance(text, bool) else 0
    if value < 1:
        raise ValueError(
            f"{_given(text)} is not a length: use a whole number of at least 1, such as 4096 or 8K"
        )
    return value


def format_length(num_tokens: int) -> str:
    """4096 → "4K", 1500 → "1500"."""
    for factor, suffix in ((1024 * 1024, "M"), (1024, "K")):
        if num_tokens >= factor and num_tokens % factor == 0:
            return f"{num_tokens // factor}{suffix}"
    return str(num_tokens)


def parse_heads(text: str | int) -> tuple[int, int]:
    """(query heads, KV heads) from "64:8"; a lone number means as many KV heads. Raises ValueError."""
    match = _HEADS.fullmatch(str(text))
    num_q_heads, num_kv_heads = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not num_q_heads or not num_kv_heads:
        raise ValueError(f"{_given(text)} is not a head count: use QUERY:KV, such as '64:8'")
    if num_q_heads % num_kv_heads:
        raise ValueError(
            f"'{text}': {num_q_heads} query heads cannot be shared evenly among {num_kv_heads} KV heads"
        )
    return num_q_heads, num_kv_heads


def by_numbers(text: str) -> tuple[tuple[str, int], ...]:
    """Sort key of a text by the numbers in it, lengths included: "64:8" precedes "64:64", and "256" precedes
    "1K"."""
    parts = re.split(r"([0-9]{1,30}[kKmM]?)(?![0-9A-Za-z])", text)
    return tuple(
        ("", int(part.rstrip("kKmM")) * _FACTOR[part.lstrip("0123456789").lower()])
        if index % 2
        else (part, 0)
        for index, part in enumerate(parts)
    )


def _given(text: int | str) -> str:
    return shortened(repr(text), MOST_SHOWN)
