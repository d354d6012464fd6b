"""A call as it is asked for: what a question leaves out has the value of most records, and is named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from longca.core import (
    Registry,
    Scalar,
    UserError,
    check_name,
    format_length,
    given_heads,
    parse_length,
    whole_number,
)
from longca.lab.advice.question import check_blocks
from longca.lab.studies import USUAL_HEADS, USUAL_SEQLEN, usual_corpus
from longca.masks import Mask, build_mask

if TYPE_CHECKING:
    from longca.lab.advice.question import AdviceQuestion


def mask_and_heads(
    mask: Mask | str,
    *,
    gpus: int,
    seqlen: int | str | None,
    new_tokens: int | str | None,
    corpus: str | None,
    seed: int | None,
    num_q_heads: int | None,
    num_kv_heads: int | None,
    params: Mapping[str, Scalar],
) -> tuple[Mask, int, int]:
    """The mask, and the numbers of query and KV heads.

    Args:
        mask: built already, or a pattern's name; the arguments that build a mask go with a name alone.

    Raises:
        UserError: an argument cannot be used.
    """
    if isinstance(mask, str):
        num_q_heads, num_kv_heads = given_heads(num_q_heads, num_kv_heads, USUAL_HEADS)
        built = _built(mask, gpus, seqlen, new_tokens, corpus, seed, num_kv_heads, params)
        return built, num_q_heads, num_kv_heads
    given = {"seqlen": seqlen, "new_tokens": new_tokens, "corpus": corpus, "seed": seed, **params}
    extra = [name for name, value in given.items() if value is not None]
    if isinstance(mask, Mask) and extra:
        raise UserError(
            f"Argument '{extra[0]}' is for a pattern's name, and this mask is built already",
            todo=f"Give it to longca.build_mask, or longca.advise({mask.name or 'causal'!r}, {extra[0]}=…)",
        )
    if num_q_heads is None and num_kv_heads is None and isinstance(mask, Mask) and mask.num_groups > 1:
        num_kv_heads = mask.num_groups  # a mask with head groups says how many KV heads it is for
    return mask, *given_heads(num_q_heads, num_kv_heads, USUAL_HEADS)


def _built(
    name: str,
    gpus: int,
    seqlen: int | str | None,
    new_tokens: int | str | None,
    corpus: str | None,
    seed: int | None,
    num_kv_heads: int,
    params: Mapping[str, Scalar],
) -> Mask:
    pattern = Registry("mask").load(name)
    try:
        tokens = parse_length(USUAL_SEQLEN if seqlen is None else seqlen)
    except ValueError as error:
        raise UserError(str(error)) from None
    if corpus is not None:
        check_name("corpus", corpus, Registry("corpus").names())
        if not pattern.uses_documents:
            raise UserError(f"Mask '{name}' has no documents", todo="Leave the corpus out")
    check_blocks(
        name, pattern.resolve(params), tokens, num_kv_heads, whole_number("The number of GPUs", gpus)
    )
    return build_mask(
        name,
        seqlen=tokens,
        corpus=(corpus or usual_corpus(tokens)) if pattern.uses_documents else None,
        seed=0 if seed is None else seed,
        num_kv_heads=num_kv_heads,
        new_tokens=new_tokens,
        **dict[str, Any](params),
    )


def left_out(question: AdviceQuestion, given: Mapping[str, object]) -> dict[str, str]:
    """The values taken for what was left out, by the names of the command's options and of the mask's
    parameters.

    Args:
        given: by these names, the arguments; None stands for one that was left out.
    """
    call = question.call
    one_gpu = question.gpus == 1
    taken = {
        "tokens": format_length(question.mask.seqlen_k),
        "gpus": question.gpus,
        "heads": f"{call.num_q_heads}:{call.num_kv_heads}",
        "head_dim": call.head_dim,
        "dtype": call.dtype,
        "direction": " and ".join(question.directions),
        "corpus": question.corpus,
        "seed": question.seeds[0] if question.seeds else None,
        "draws": question.num_draws if question.seeds else None,
        "profile": None if one_gpu else question.network.name,
        "gpu": question.gpu.name,
        "node": None if one_gpu else question.network.ranks_per_node,
    }
    if given.get("mask") is None:  # then a pattern's name was, and perhaps parameters of it
        taken |= {name: value for name, value in question.mask_params.items() if value is not False}
    return {
        name: str(value) for name, value in taken.items() if value is not None and given.get(name) is None
    }
