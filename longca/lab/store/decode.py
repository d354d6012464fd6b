"""The text of one record: encoding with a checksum, and decoding with the reason for invalid texts."""

import functools
import re
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from longca.core import Model, problems_of, shown
from longca.core.reading import CELL_FILE, JsonError, read_json
from longca.core.secrets import data_without_secrets
from longca.lab.store.checks.record import (
    CHECKSUM_KEY,
    CHECKSUM_SINCE,
    checksum_of,
    checksum_of_content,
    contradiction,
)
from longca.lab.studies import Environment, Record

MOST_OF_REASON = 500  # characters
READABLE: tuple[int, ...] = get_args(Record.model_fields["schema_version"].annotation)

# cached environments, and bytes of each; a study has some dozens of 2 KB
MOST_SHARED = 1_000
MOST_OF_SHARED = 100_000
# as `encode` writes
_ENVIRONMENT = b',"environment":{'
_NO_ENVIRONMENT = b',"environment":null'
_AFTER_ENVIRONMENT = b'},"started_at":"'
_CHECKSUM = re.compile(rb',"checksum":"(sha256:[0-9a-f]{64})"\}\s*\Z')
_CHANGED = "is damaged (its checksum says otherwise: it was changed after it was written)"


class Unusable(ValueError):
    """A text that is not a valid record; the reason continues the name of a file or row."""

    def __init__(self, reason: str) -> None:
        super().__init__(shown(reason, MOST_OF_REASON))


def encode(record: Record) -> bytes:
    """A line with the record as a JSON object. Its last key `checksum` has the SHA-256 of the record's JSON
    without that key."""
    text = record.model_dump_json().encode()
    return text[:-1] + f',"{CHECKSUM_KEY}":"{checksum_of(text)}"}}\n'.encode()


def record_without_secrets(record: Record) -> Record:
    """The record with `***` for passwords and tokens in any of its texts; the same object if it has none."""
    data = record.model_dump(mode="json")
    hidden = data_without_secrets(data)
    return record if hidden is data else Record.model_validate(hidden)


class Decoder:
    """Reads the texts of records. Only records of an old schema may lack a checksum.

    Records of earlier versions, or of others, may have a password in an address or in an error's log: these
    are read without it.

    The environment is half of a text and the same in many records, so each is parsed once and shared.
    """

    def __init__(self) -> None:
        self._environments: dict[bytes, Environment | None] = {}

    def decode(self, text: bytes) -> Record:
        """The record in a text.

        Raises:
            Unusable: it is not a record, violates the bounds of a field, is inconsistent, or has a wrong
                checksum.
        """
        if len(text) > CELL_FILE.num_bytes():
            raise Unusable(f"is larger than {CELL_FILE.value():,} MiB; {CELL_FILE.todo}")
        written = _as_written(text)
        record = self._decode_quickly(text.strip() if written is None else written)
        if record is not None:
            record = _checked(record, written is not None)
            # the whole search would take as long as all else
            return record_without_secrets(record) if b"://" in text or b'"log":"' in text else record
        try:
            content = read_json(text)
        except JsonError as error:
            raise Unusable(f"is damaged (it {error})") from None
        has_checksum = isinstance(content, dict) and content.pop(CHECKSUM_KEY, None) is not None
        record = _checked(from_content(content), has_checksum)
        if has_checksum and written is None:
            raise Unusable(_CHANGED)
        return record_without_secrets(record)

    def _decode_quickly(self, text: bytes) -> Record | None:
        """The record of a text in this project's own format; None for other texts, which need the slower
        path."""
        start = text.find(_ENVIRONMENT)
        end = text.find(_AFTER_ENVIRONMENT, start) + 1
        if start < 0 or not 0 < end - start < MOST_OF_SHARED or text.find(_ENVIRONMENT, start + 1) >= 0:
            return _parsed(Record, text)
        environment = self._environment(text[start + len(_ENVIRONMENT) - 1 : end])
        record = environment and _parsed(Record, text[:start] + _NO_ENVIRONMENT + text[end:])
        # both texts are JSON, so the whole text is. Mappings of a record never contain null, so a null
        # belongs to a field of the record
        is_own = (
            record is not None and "environment" in record.model_fields_set and record.environment is None
        )
        return (
            record.model_copy(update={"environment": environment}) if record is not None and is_own else None
        )

    def _environment(self, text: bytes) -> Environment | None:
        """The environment in a text, None if invalid; cached for equal texts."""
        if text not in self._environments:
            if len(self._environments) >= MOST_SHARED:
                self._environments.clear()
            self._environments[text] = _parsed(Environment, text)
        return self._environments[text]


def _parsed(model: type[Model], text: bytes) -> Model | None:
    """The value of a text; None if it is invalid or uncertain.

    The parser keeps the last one of repeated keys, so the keys of the text and those of the value are counted
    and compared.
    """
    num_keys = _count_keys(text)
    try:
        value = None if num_keys is None else model.model_validate_json(text)
    except ValidationError:
        return None
    return value if value is not None and num_keys == _num_keys(value) else None


def _count_keys(text: bytes) -> int | None:
    """The number of keys in JSON without blanks before colons; None if uncertain. Counting one character is
    cheap."""
    if b"\n" in text or b"\t" in text or b"\r" in text or b" :" in text:
        return None
    if b"\\" not in text:
        return text.count(b'":')
    # the second kind is inside of a text
    return None if b'\\\\"' in text else text.count(b'":') - text.count(b'\\":')


def _num_keys(value: Any) -> int:
    """The number of keys of the JSON objects of a value."""
    if type(value) is dict:
        inner = sum(_num_keys(part) for part in value.values() if isinstance(part, (BaseModel, dict)))
        return len(value) + inner
    if type(value) is tuple:
        return sum(map(_num_keys, value))
    if value is None:
        return 0
    count = len(value.model_fields_set)
    for name in _with_keys(type(value)):
        count += _num_keys(getattr(value, name))  # empty for an omitted field
    return count


@functools.cache
def _with_keys(model: type[BaseModel]) -> tuple[str, ...]:
    """The fields that may hold models or mappings."""
    return tuple(name for name, field in model.model_fields.items() if _has_keys(field.annotation))


def _has_keys(annotation: Any) -> bool:
    origin = get_origin(annotation)
    if origin is None:
        return isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return origin is dict or any(map(_has_keys, get_args(annotation)))


def _as_written(text: bytes) -> bytes | None:
    """The JSON before a text's final checksum; None if the checksum is missing or wrong."""
    position = text.rfind(b',"checksum":')
    match = _CHECKSUM.fullmatch(text, max(position, 0))
    written = text[:position] + b"}"
    return written if match is not None and checksum_of(written) == match[1].decode() else None


def decode_content(content: Any) -> Record:
    """The record in parsed JSON that may have a checksum. Raises Unusable, as `Decoder.decode` does."""
    checksum = content.get(CHECKSUM_KEY) if isinstance(content, dict) else None
    written = (
        {key: value for key, value in content.items() if key != CHECKSUM_KEY}
        if checksum is not None
        else content
    )
    record = _checked(from_content(written), checksum is not None)
    if checksum is not None and checksum != checksum_of_content(written):
        raise Unusable(_CHANGED)
    return record


def _checked(record: Record, has_checksum: bool) -> Record:
    """The same record. Raises Unusable if it is inconsistent, or lacks the checksum that its schema
    requires."""
    if not has_checksum and record.schema_version >= CHECKSUM_SINCE:
        raise Unusable("is damaged (it has no checksum)")
    if (why := contradiction(record)) is not None:
        raise Unusable(f"is damaged (it {why})")
    return record


def from_content(content: Any) -> Record:
    """The record from parsed JSON without a checksum, checked only by the bounds of its fields. Raises
    Unusable."""
    version = content.get("schema_version") if isinstance(content, dict) else None
    if version is None:
        raise Unusable("is damaged (not a record: it has no schema version)")
    if type(version) is not int:
        raise Unusable(f"is damaged (its schema version is {version!r:.40}, no whole number)")
    if version not in READABLE:
        raise Unusable(f"has schema version {version}, this longca reads {READABLE[0]} to {READABLE[-1]}")
    try:
        return Record.model_validate(content)
    except ValidationError as error:
        [first], num_more = problems_of(Record, error, 1)
        raise Unusable(f"is damaged ({first}{f'; and {num_more} more' if num_more else ''})") from None
