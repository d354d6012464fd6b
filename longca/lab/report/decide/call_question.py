"""The question of `longca.choose`, checked: what is left out has the value of most records."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.core import (
    DTYPE_BYTES,
    Registry,
    UserError,
    check_name,
    format_length,
    given_heads,
    parse_length,
    whole_number,
)
from longca.lab.report.choose import CallQuestion
from longca.lab.studies import (
    USUAL_DTYPE,
    USUAL_HEAD_DIM,
    USUAL_HEADS,
    USUAL_SEQLEN,
    check_new_tokens,
    check_ranks,
)
from longca.lab.studies.checkout import studies_folder

if TYPE_CHECKING:
    from longca.masks import Mask


def refuse_second_mask(mask: str, sources: Iterable[object]) -> None:
    """Raises UserError for a source of records that is the name of a mask, and of nothing else."""
    for source in sources:
        if not isinstance(source, str) or source.partition(":")[0] not in Registry("mask").names():
            continue
        if not Path(source).exists() and not (studies_folder() / f"{source}.yaml").exists():
            raise UserError(f"Two masks are given, {mask!r} and {source!r}", todo="Name one")


def question_of(
    mask: Mask | str,
    *,
    seqlen: int | str | None,
    num_q_heads: int | None,
    num_kv_heads: int | None,
    head_dim: int | None,
    dtype: str | None,
    gpus: int | None,
    corpus: str | None,
    params: dict[str, Any],
    deterministic: bool = False,
    new_tokens: int | str | None = None,
) -> CallQuestion:
    """Checks a question. Arguments are those of `choose`. Raises UserError."""
    given = {"heads": num_q_heads or num_kv_heads, "head_dim": head_dim, "dtype": dtype, "gpus": gpus}
    dtype = USUAL_DTYPE if dtype is None else dtype
    check_name("dtype", dtype, DTYPE_BYTES)
    by_name = isinstance(mask, str)
    if not isinstance(mask, str):
        if not getattr(mask, "name", ""):
            raise UserError(
                "Records know masks by their pattern",
                why=f"this is {mask!r}",
                todo="Give a name of `longca list masks`, or ask longca.advise",
            )
        defaults = Registry("mask").load(mask.name).resolve({})
        params = {key: mask.params[key] for key in defaults if mask.params.get(key) != defaults[key]} | params
        if mask.seqlen_q < mask.seqlen_k and new_tokens is None:
            new_tokens = mask.seqlen_q
        seqlen = mask.seqlen_k if seqlen is None else seqlen
        corpus = mask.origin.corpus if corpus is None and mask.origin is not None else corpus
        mask = mask.name
    pattern = Registry("mask").load(mask)
    usual = pattern.resolve(params)
    if corpus is not None:
        check_name("corpus", corpus, Registry("corpus").names())
        if not pattern.uses_documents:
            raise UserError(f"Mask '{mask}' has no documents", todo="Leave the corpus out")
    try:
        tokens = parse_length(USUAL_SEQLEN if seqlen is None else seqlen)
        queries = None if new_tokens is None else parse_length(new_tokens)
        if queries is not None:
            check_new_tokens(queries, tokens)
    except ValueError as error:
        raise UserError(str(error)) from None
    num_q_heads, num_kv_heads = given_heads(num_q_heads, num_kv_heads, USUAL_HEADS)
    gpus = whole_number("The number of GPUs", 1 if gpus is None else gpus)
    check_ranks(gpus, tokens)
    head_dim = whole_number("The head dim", USUAL_HEAD_DIM if head_dim is None else head_dim)
    taken = {
        "tokens": format_length(tokens),
        "gpus": gpus,
        "heads": f"{num_q_heads}:{num_kv_heads}",
        "head_dim": head_dim,
        "dtype": dtype,
    }
    given["tokens"] = seqlen
    if by_name:
        taken |= {key: value for key, value in usual.items() if value is not False}
        given |= dict.fromkeys(usual) | params
    defaults = {name: str(value) for name, value in taken.items() if given[name] is None}
    return CallQuestion(
        mask,
        {key: usual[key] for key in params},
        usual,
        tokens,
        num_q_heads,
        num_kv_heads,
        head_dim,
        dtype,
        "fwd",
        gpus,
        corpus,
        defaults,
        bool(deterministic),
        queries,
    )
