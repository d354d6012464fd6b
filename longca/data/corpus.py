"""The corpus: the lengths of a collection's documents. One JSON file in `corpora/` is one corpus."""

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from longca.core import Frozen, Plugin, UserError, parse
from longca.core.reading import CORPUS, JsonError, read_file, read_json

# tokens of a document, and documents of a bin: beyond realistic values, and small enough for sums in int64
MOST = 1 << 40


class Bin(NamedTuple):
    """Documents of `lo` to `hi` tokens, both included."""

    lo: Annotated[int, Field(ge=0)]
    hi: Annotated[int, Field(ge=1, le=MOST)]
    num_documents: Annotated[int, Field(ge=0, le=MOST)]


class Weight(NamedTuple):
    """Share of documents of `lo` to `hi` tokens, as a study published it."""

    lo: Annotated[int, Field(ge=0)]
    hi: Annotated[int, Field(ge=1, le=MOST)]
    weight: Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)]


class LongDocuments(Frozen):
    """Documents of `lo` to `hi` tokens, uniformly distributed, that fill a share of every sequence."""

    share: float = Field(gt=0, lt=1)
    """share of the tokens; documents of the bins fill the rest"""
    lo: int = Field(ge=1, le=MOST)
    hi: int = Field(ge=1, le=MOST)


class CorpusFile(Frozen):
    """The content of a corpus file."""

    label: str
    """as figures and tables name it"""
    description: str = ""
    source: str
    """where the numbers come from"""
    licence: str = ""
    unit: Literal["tokens", "bytes"] = "tokens"
    """unit of lengths; each byte counts as a token"""
    notes: tuple[str, ...] = ()
    """important notes on the numbers"""
    bins: tuple[Bin, ...]
    """documents per length, ascending and disjoint"""
    histogram: tuple[Weight, ...] = ()
    """the histogram of the paper's own sampler; needed only for `paper_compat`"""
    long_documents: LongDocuments | None = None
    """additional documents, which are not part of the corpus statistics"""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not sum(part.num_documents for part in self.bins):
            raise ValueError("the corpus has no documents")
        for kind, parts in (("bins", self.bins), ("histogram", self.histogram)):
            for number, part in enumerate(parts):
                if part.lo > part.hi:
                    raise ValueError(
                        f"entry {number + 1} of `{kind}` ends at {part.hi}, before it begins at {part.lo}"
                    )
        for number, (lower, upper) in enumerate(zip(self.bins, self.bins[1:], strict=False)):
            if upper.lo <= lower.hi:
                raise ValueError(
                    f"entry {number + 2} of `bins` begins at {upper.lo}, but the one before ends at "
                    f"{lower.hi}: they must ascend and not overlap"
                )
        if self.histogram and not sum(part.weight for part in self.histogram):
            raise ValueError("all weights of `histogram` are 0")
        if self.long_documents and self.long_documents.lo > self.long_documents.hi:
            raise ValueError(
                f"`long_documents` end at {self.long_documents.hi}, before they begin at "
                f"{self.long_documents.lo}"
            )
        return self

    def to_json(self) -> str:
        """The text of the file: one bin per line, for readable diffs."""
        fields = self.model_dump(mode="json", exclude_defaults=True)
        lines = [f" {json.dumps(key)}: {_rows(value)}" for key, value in fields.items()]
        return "{\n" + ",\n".join(lines) + "\n}\n"


class Corpus(Plugin):
    """A distribution of document lengths: counts per bin, uniform within a bin."""

    def __init__(self, content: CorpusFile, name: str = "", path: Path = Path()) -> None:
        self.content = content
        self.name = name
        self.path = path
        self.label = content.label

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """The corpus in a JSON file. Raises UserError with the file's name if the file is invalid."""
        try:
            data = read_json(read_file(path, CORPUS))
        except OSError as error:
            raise UserError(f"Cannot read '{path}'", why=error.strerror or str(error)) from error
        except JsonError as error:
            raise UserError(f"'{path}'{f' line {error.line}' if error.line else ''} {error}") from error
        return cls(parse(CorpusFile, data, f"Corpus '{path}'"), path.stem, path)

    @cached_property
    def bins(self) -> np.ndarray:
        """(n, 3) int64: shortest, longest, number of documents. A document has at least one token."""
        bins = np.array([part for part in self.content.bins if part.num_documents], dtype=np.int64)
        bins[:, 0] = np.maximum(bins[:, 0], 1)
        return bins

    @property
    def num_documents(self) -> int:
        return int(self.bins[:, 2].sum())

    @property
    def num_tokens(self) -> float:
        """Tokens of all documents, as expected from the bins."""
        low, high, count = self.bins.T
        return float(((low + high) / 2 * count).sum())

    @property
    def mean_length(self) -> float:
        return self.num_tokens / self.num_documents

    @property
    def longest(self) -> int:
        return int(self.bins[-1, 1])

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits over the numbers: equal bins, histogram and long documents have equal
        digests."""
        content = self.content
        more = [] if content.long_documents is None else [content.long_documents.model_dump()]
        numbers = json.dumps([content.bins, content.histogram, *more], separators=(",", ":"))
        return hashlib.sha256(numbers.encode()).hexdigest()[:16]

    def parts(self, seqlen: int) -> list[tuple[Self, int]]:
        """(corpus, tokens) of each non-empty part of a sequence; one part if the corpus has no long
        documents."""
        added = self.content.long_documents
        if added is None:
            return [(self, seqlen)]
        num_short = int(seqlen * (1 - added.share))
        alone = self.content.model_copy(update={"long_documents": None})
        long = alone.model_copy(
            update={
                "bins": (Bin(added.lo, added.hi, 1),),
                "histogram": (Weight(added.lo, added.hi, 1.0),) if alone.histogram else (),
            }
        )
        found = ((alone, num_short), (long, seqlen - num_short))
        return [(type(self)(content, self.name, self.path), tokens) for content, tokens in found if tokens]

    def up_to(self, length: int) -> tuple[float, float]:
        """(share of documents, share of tokens) in documents of at most `length` tokens."""
        low, high, count = self.bins.T
        inside = np.clip(length - low + 1, 0, high - low + 1)
        documents = count * (inside / (high - low + 1))
        tokens = documents * (low + low + inside - 1) / 2
        return float(documents.sum() / self.num_documents), float(tokens.sum() / self.num_tokens)

    @property
    def summary(self) -> str:
        """One line for lists."""
        return self.content.description

    def facts(self) -> dict[str, Any]:
        """Plain data for lists and pages; `by_length` has a row for each factor of two from 64 tokens on."""
        rows = []
        before = (0.0, 0.0)
        edges = [64 << power for power in range(64) if 32 << power < self.longest]
        for edge in edges or [64]:
            share = self.up_to(edge)
            rows.append({"up_to": edge, "documents": share[0] - before[0], "tokens": share[1] - before[1]})
            before = share
        return {
            "name": self.name,
            "label": self.label,
            "path": str(self.path),
            "digest": self.digest,
            **self.content.model_dump(
                mode="json", include={"description", "source", "licence", "unit", "notes", "long_documents"}
            ),
            "num_documents": self.num_documents,
            "mean_length": self.mean_length,
            "longest": self.longest,
            "has_histogram": bool(self.content.histogram),
            "by_length": rows,
        }


def _rows(value: Any) -> str:
    if not isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    return "[\n" + ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in value) + "\n ]"
