"""The sampler: document lengths that fill a sequence exactly."""

import functools
import hashlib
import random
from collections.abc import Iterator
from itertools import accumulate

import numpy as np

from longca.core import Registry, UserError
from longca.core.reading import DOCUMENTS
from longca.data.corpus import Corpus

# of the sequence; longer documents are split, otherwise one document could make the mask full
LONGEST_SHARE = 0.25
PAPER_SEED = 42
NUM_PAPER_MASKS = 30


def sample_documents(corpus: str, seqlen: int, *, seed: int, paper_compat: bool = False) -> np.ndarray:
    """Lengths of the documents of one sequence.

    All documents of the corpus are split into pieces of at most a quarter of the sequence. Pieces are drawn
    with replacement; the last one is cut to fit. The same arguments give the same lengths on every machine.

    Args:
        corpus: name of the corpus.
        seqlen: tokens to fill.
        paper_compat: draw like LongCA-bench's released code: from its histogram, without splitting.

    Returns:
        int64 lengths, each at least 1, that sum to `seqlen`.

    Raises:
        UserError: unknown or damaged corpus, no tokens to fill, more documents than the limit, or no
            histogram for `paper_compat`.
    """
    if seqlen < 1:
        raise UserError(f"A sequence cannot have {seqlen} tokens", todo="Give a length of at least 1")
    source = Registry("corpus").load(corpus)
    expected = int(seqlen / _mean_length(source, paper_compat))
    if expected > DOCUMENTS.value():
        raise UserError(
            f"{seqlen:,} tokens of corpus '{corpus}' are some {expected:,} documents",
            why=f"at most {DOCUMENTS.value():,} are drawn",
            todo=DOCUMENTS.todo,
        )
    return draw_as_paper(source, seqlen, seed) if paper_compat else draw(source, seqlen, seed)


def _mean_length(corpus: Corpus, paper_compat: bool) -> float:
    """The mean length of the documents that will be drawn, before long ones are split or cut."""
    histogram = corpus.content.histogram if paper_compat else ()
    if not histogram:
        return corpus.mean_length
    return max(
        1.0,
        sum(part.weight * (part.lo + part.hi) / 2 for part in histogram)
        / sum(part.weight for part in histogram),
    )


def draw(corpus: Corpus, seqlen: int, seed: int) -> np.ndarray:
    """Lengths of split documents in random order, the last one of each part of the corpus cut to fit."""
    cap = max(1, int(LONGEST_SHARE * seqlen))
    rng = np.random.default_rng([seed, seqlen, *hashlib.sha256(corpus.name.encode()).digest()[:8]])
    parts = [_fill(part, tokens, cap, rng) for part, tokens in corpus.parts(seqlen)]
    if len(parts) == 1:
        return parts[0]
    lengths = np.concatenate(parts)
    return lengths[np.argsort(rng.random(len(lengths)), kind="stable")]


def _fill(corpus: Corpus, num_tokens: int, cap: int, rng: np.random.Generator) -> np.ndarray:
    """Lengths of pieces of at most `cap` tokens that sum to `num_tokens`."""
    drawn = np.empty(0, dtype=np.int64)
    while (filled := int(drawn.sum())) < num_tokens:
        expected = (num_tokens - filled) / min(corpus.mean_length, cap)
        drawn = np.concatenate([drawn, draw_pieces(corpus, cap, 16 + int(1.5 * expected), rng)])
    ends = np.minimum(np.cumsum(drawn), num_tokens)
    return np.diff(ends[: np.searchsorted(ends, num_tokens) + 1], prepend=0)


def draw_pieces(corpus: Corpus, cap: int, num_draws: int, rng: np.random.Generator) -> np.ndarray:
    """Lengths of pieces drawn from the whole corpus cut into pieces of `cap` tokens, (at most num_draws,)
    int64.

    A document of L tokens makes L // cap pieces of `cap` tokens and one of L % cap. Pieces are drawn
    independently, so that the pieces of one very long document cannot fill the sequence.
    """
    low, high, count = corpus.bins.T
    whole_pieces = (
        np.array(
            [
                (_sum_of_quotients(last + 1, cap) - _sum_of_quotients(first, cap)) / (last + 1 - first)
                for first, last, _ in corpus.bins.tolist()
            ]
        )
        * count
    )
    upto = np.cumsum(np.concatenate([count, whole_pieces]))
    # uniform floats only: numpy may change the algorithms of other distributions between versions
    uniform = rng.random((2, num_draws))
    chosen = np.searchsorted(upto, uniform[0] * upto[-1], side="right")
    which = chosen % len(low)
    length = low[which] + (uniform[1] * (high + 1 - low)[which]).astype(np.int64)
    pieces = np.where(chosen < len(low), length % cap, cap)
    return pieces[pieces > 0]


def draw_as_paper(corpus: Corpus, seqlen: int, seed: int) -> np.ndarray:
    """Lengths as drawn by LongCA-bench 22683e3 (`dist_attn/benchmark`).

    It drew up to 30 masks of a setting in sequence from one generator: these are seeds 0 to 29 here. Other
    seeds have separate generators.
    """
    if seed >= NUM_PAPER_MASKS:
        return np.array(_lengths_as_paper(corpus, seqlen, random.Random(PAPER_SEED + seed)), dtype=np.int64)
    generator, drawn = _paper_draws(corpus.digest, seqlen)
    while len(drawn) <= seed:
        drawn.append(np.array(_lengths_as_paper(corpus, seqlen, generator), dtype=np.int64))
    return drawn[seed].copy()


@functools.lru_cache(maxsize=16)
def _paper_draws(digest: str, seqlen: int) -> tuple[random.Random, list[np.ndarray]]:
    """The study's generator for this corpus and length, with a cache of its draws: 30 masks take 30 draws,
    not 465."""
    return random.Random(PAPER_SEED), []


def _lengths_as_paper(corpus: Corpus, seqlen: int, rng: random.Random) -> list[int]:
    """The next lengths of the study's generator.

    A bin is chosen by weight, a length uniformly within the bin, and excess is cut. The last bin is open, so
    one document in hundreds has millions of tokens and fills the rest of the sequence. Long documents follow
    the others, and then all are shuffled.
    """
    if not corpus.content.histogram:
        raise UserError(
            f"Corpus '{corpus.name}' has no histogram",
            why="`paper_compat` draws from the published one",
            todo="Use the default sampler, or one of the study's corpora",
        )
    lengths = [
        length for part, tokens in corpus.parts(seqlen) for length in _fill_as_paper(part, tokens, rng)
    ]
    if corpus.content.long_documents is not None:
        rng.shuffle(lengths)
    return lengths


def _fill_as_paper(corpus: Corpus, num_tokens: int, rng: random.Random) -> Iterator[int]:
    histogram = corpus.content.histogram
    upto = list(accumulate(part.weight for part in histogram))
    while num_tokens:
        part = rng.choices(histogram, cum_weights=upto)[0]
        length = max(1, min(rng.randint(part.lo, part.hi), num_tokens))
        yield length
        num_tokens -= length


def _sum_of_quotients(end: int, divisor: int) -> int:
    """Sum of n // divisor over 0 <= n < end; for long documents this can exceed 64 bits."""
    quotient, rest = divmod(end, divisor)
    return divisor * (quotient * (quotient - 1) // 2) + rest * quotient
