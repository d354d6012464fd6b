"""Rules for a record beyond the bounds of its fields: it is consistent, and its checksum matches.

All commands read records through `longca.lab.store.decode`, which applies these rules.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from longca.lab.studies import Accuracy, Record

CHECKSUM_SINCE = 2  # schema version from which a record without a checksum is damaged
ASKED_SINCE = 3  # … from which it has what was asked, listings of software, and sampled lengths
CHECKSUM_KEY = "checksum"
CHECKSUM_KIND = "sha256:"
DIGITS = 16  # of a digest that tells records from each other


def contradiction(record: Record) -> str | None:
    """The reason why a record is inconsistent, as a continuation of "it"; None if it is consistent.

    An ok record was compared with a reference, and no error exceeds its budget. Each of its ranks has
    samples.
    """
    if (later := _of_a_later_schema(record)) is not None:
        return f"calls itself a record of schema {record.schema_version}, and has {later}, which came later"
    if record.outcome.status != "ok":
        return None
    assert record.accuracy is not None and record.samples is not None, "`Record` lets none pass without"
    num_ranks = len(record.samples.time_ms)
    if num_ranks != record.cell.world:
        return f"is ok, and has samples of {num_ranks} of {record.cell.world} ranks"
    return _of_errors(record.accuracy)


def _of_a_later_schema(record: Record) -> str | None:
    """A field of a record that none of its schema has: it was given an earlier number by hand, which would
    spare it the checksum. None where there is nothing."""
    if record.schema_version >= ASKED_SINCE:
        return None
    environment, samples, accuracy, mask = record.environment, record.samples, record.accuracy, record.mask
    held = {
        "what was asked": record.measure,
        "listings of software": environment is not None and environment.ranks,
        "sampled lengths": mask is not None and mask.lengths,
        "seconds of warming up": samples is not None and samples.warm_seconds is not None,
        "a seed of its checks": accuracy is not None and accuracy.seed is not None,
        "a play-off": record.playoff,
    }
    return next((name for name, value in held.items() if value), None)


def _of_errors(accuracy: Accuracy) -> str | None:
    if not accuracy.budget:
        return "is ok, and no error of it was judged"
    for tensor, budget in accuracy.budget.items():
        error = accuracy.relative.get(tensor)
        if not 0 <= budget < math.inf:
            return f"is ok, and its budget of {tensor} is {budget:g}"
        if error is None or not 0 <= error <= budget:
            size = "not known" if error is None else f"{error:.2e}"
            return f"is ok, and its error of {tensor} is {size}, where {budget:.2e} is allowed"
    for tensor, ratio in accuracy.worst_row.items():
        if not 0 <= ratio <= 1:
            return f"is ok, and a row of {tensor} is off by {ratio:.3g} times what is allowed in one"
    for tensor, ratio in accuracy.worst_part.items():
        if not 0 <= ratio <= 1:
            part = accuracy.worst_part_of.get(tensor, "a part")
            return f"is ok, and {part} of {tensor} is off by {ratio:.3g} times what is allowed there"
    if accuracy.empty_rows_ok is False:
        return "is ok, and its rows without keys are wrong"
    if accuracy.deterministic is False:
        return "is ok, and the bits of its gradients differ between runs, where they must not"
    if accuracy.deterministic and accuracy.bit_runs < 2:
        return f"is called deterministic, and the bits of {accuracy.bit_runs} runs were compared"
    return None


def digest_of(record: Record) -> str:
    """16 hexadecimal digits that are equal only for equal records."""
    return hashlib.sha256(record.model_dump_json().encode()).hexdigest()[:DIGITS]


def digest_in(text: bytes) -> str:
    """The same of a record's text in a table of records, which is its JSON, and may end with its checksum."""
    _, mark, checksum = text.rpartition(f'"{CHECKSUM_KEY}":"{CHECKSUM_KIND}'.encode())
    has_checksum = bool(mark) and len(checksum) == len('"}') + hashlib.sha256().digest_size * 2
    return checksum[:DIGITS].decode() if has_checksum else hashlib.sha256(text).hexdigest()[:DIGITS]


def checksum_of(written: bytes) -> str:
    """The checksum of a record's JSON without its key `checksum`."""
    return CHECKSUM_KIND + hashlib.sha256(written).hexdigest()


def checksum_of_content(content: Mapping[str, Any]) -> str:
    """The same for parsed JSON, with numbers in the format of records."""
    return checksum_of(to_json(content))
