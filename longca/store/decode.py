"""The text of one record: written with a checksum, and read with the reason why it cannot be used."""

import hashlib
import re
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from longca.core.errors import shown
from longca.core.limits import CELL_FILE
from longca.core.reading import JsonError, read_json
from longca.core.record import SCHEMA_VERSION, Record
from longca.core.schema import problems_of

MOST_OF_REASON = 500  # characters

_CHECKSUM = re.compile(rb',"checksum":"sha256:([0-9a-f]{64})"\}\s*\Z')


class Unusable(ValueError):
    """A text that is no record of this longca; it says why, to follow upon the name of a file or row."""

    def __init__(self, reason: str) -> None:
        super().__init__(shown(reason, MOST_OF_REASON))


def encode(record: Record) -> bytes:
    """A line with the record as a JSON object. Its last key `checksum` has the SHA-256 of the record's JSON without that key."""
    text = record.model_dump_json().encode()
    return text[:-1] + f',"checksum":"sha256:{hashlib.sha256(text).hexdigest()}"}}\n'.encode()


def decode(text: str | bytes) -> Record:
    """The record in a text, with a checksum or (of tables, and of files from before there was one) without.

    Raises:
        Unusable: it is no record, breaks the bounds of a field, or is not as it was written.
    """
    if len(text) > CELL_FILE.num_bytes():
        raise Unusable(f"is larger than {CELL_FILE.value():,} MiB; {CELL_FILE.todo}")
    written = _as_written(text) if isinstance(text, bytes) else None
    if written is not None:  # the quick way; the other one is for what it refuses, and says why
        with suppress(ValidationError):
            return Record.model_validate_json(written)
    try:
        content = read_json(text)
    except JsonError as error:
        raise Unusable(f"is damaged ({error})") from None
    has_checksum = isinstance(content, dict) and content.pop("checksum", None) is not None
    record = from_content(content)
    if has_checksum and written is None:
        raise Unusable("is damaged (its checksum says otherwise: it was changed after it was written)")
    return record


def _as_written(text: bytes) -> bytes | None:
    """The JSON that the checksum at the end of a text is of; None where there is none, or it is of another JSON."""
    place = text.rfind(b',"checksum":')
    match = _CHECKSUM.fullmatch(text, max(place, 0))
    written = text[:place] + b"}"
    return written if match is not None and hashlib.sha256(written).hexdigest() == match[1].decode() else None


def from_content(content: Any) -> Record:
    """The record that parsed JSON stands for. Raises Unusable."""
    version = content.get("schema_version") if isinstance(content, dict) else None
    if version is None:
        raise Unusable("is damaged (not a record: it has no schema version)")
    if type(version) is not int:
        raise Unusable(f"is damaged (its schema version is {version!r:.40}, no whole number)")
    if version != SCHEMA_VERSION:
        raise Unusable(f"has schema version {version}, this longca reads {SCHEMA_VERSION}")
    try:
        return Record.model_validate(content)
    except ValidationError as error:
        [first], num_more = problems_of(Record, error, 1)
        raise Unusable(f"is damaged ({first}{f'; and {num_more} more' if num_more else ''})") from None
