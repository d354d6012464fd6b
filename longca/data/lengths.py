"""The length of a document: in bytes, or in the tokens of a tokenizer."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Protocol

from longca.core.errors import UserError

BATCH = 256  # documents given to a tokenizer at once


class Lengths(Protocol):
    """From documents to their lengths, in order."""

    def __call__(self, documents: Iterable[str]) -> Iterator[int]: ...


def in_bytes(documents: Iterable[str]) -> Iterator[int]:
    """Lengths in bytes of UTF-8."""
    return (len(document.encode("utf-8", "surrogatepass")) for document in documents)


def in_tokens(tokenizer: Path) -> Lengths:
    """Lengths in tokens, without special ones, of a tokenizer.json of the `tokenizers` library.

    Raises:
        UserError: the library is not installed, or the file is not a tokenizer.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise UserError("Counting tokens needs the `tokenizers` library",
                        todo="`pip install tokenizers`, or leave out the tokenizer and count bytes") from error
    if not tokenizer.is_file():
        raise UserError(f"Cannot read '{tokenizer}'", why="there is no such file", todo="Give a tokenizer.json")
    try:
        loaded = Tokenizer.from_file(str(tokenizer))
    except Exception as error:  # the library raises bare Exception
        raise UserError(f"'{tokenizer}' is not a tokenizer", why=" ".join(str(error).split()),
                        todo="Give a tokenizer.json") from error
    loaded.no_truncation()  # a tokenizer file may carry the limits of the model it was made for
    loaded.no_padding()

    def lengths(documents: Iterable[str]) -> Iterator[int]:
        rest = iter(documents)
        while batch := [_without_surrogates(document) for document in islice(rest, BATCH)]:
            yield from (len(encoding.ids) for encoding in loaded.encode_batch(batch, add_special_tokens=False))

    return lengths


def _without_surrogates(document: str) -> str:
    """JSON may hold halves of characters, which no tokenizer takes."""
    return document.encode("utf-8", "replace").decode("utf-8")
