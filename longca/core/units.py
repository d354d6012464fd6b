"""Lengths and head counts as people write them ("8K", "64:8") and as tables show them."""

import re

_LENGTH = re.compile(r"(\d+)\s*([kKmM]?)")
_FACTOR = {"": 1, "k": 1024, "m": 1024 * 1024}


def parse_length(text: int | str) -> int:
    """Tokens: 8192, "8192" or "8K" (K = 1024, M = 1024²). Raises ValueError for anything else, and below 1."""
    match = _LENGTH.fullmatch(str(text).strip())
    value = int(match[1]) * _FACTOR[match[2].lower()] if match and not isinstance(text, bool) else 0
    if value < 1:
        raise ValueError(f"{text!r} is not a length: use a whole number of at least 1, such as 4096 or 8K")
    return value


def format_length(num_tokens: int) -> str:
    """4096 → "4K", 1500 → "1500"."""
    for factor, suffix in ((1024 * 1024, "M"), (1024, "K")):
        if num_tokens >= factor and num_tokens % factor == 0:
            return f"{num_tokens // factor}{suffix}"
    return str(num_tokens)


def parse_heads(text: str | int) -> tuple[int, int]:
    """(query heads, KV heads) from "64:8"; a lone number means as many KV heads. Raises ValueError."""
    parts = str(text).split(":")
    if len(parts) > 2 or not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise ValueError(f"{text!r} is not a head count: use QUERY:KV, such as '64:8'")
    num_q_heads, num_kv_heads = int(parts[0]), int(parts[-1])
    if num_q_heads % num_kv_heads:
        raise ValueError(f"'{text}': {num_q_heads} query heads cannot be shared evenly among {num_kv_heads} KV heads")
    return num_q_heads, num_kv_heads
