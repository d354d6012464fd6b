"""Abilities of each block-sparse kernel, beside what the study says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from longca.lab.paper.analysis.select import GQA, MHA
from longca.lab.paper.analysis.support import (
    BACKWARD,
    BOTH,
    DTYPES,
    FORWARD,
    HEAD_DIMS,
    LENGTH,
    NEITHER,
    STUDY_ROWS,
    answer,
    asked_kernels,
    differences,
    outcomes,
)
from longca.lab.paper.contract import Cells, PaperTable
from longca.lab.report.series import grouped
from longca.lab.store.text import plural
from longca.masks import build_mask

if TYPE_CHECKING:
    import pandas as pd

    from longca.masks import Mask

BLOCKS = {"blocks of 16": 16, "blocks of 64": 64, "blocks of 128": 128, "variable blocks": None}
GQA_BLOCKS = {f"{question} with GQA": block for question, block in BLOCKS.items() if block in (64, 128)}
HEADS_DIM = "head dims"
TYPES = "dtypes"
LSE = "LSE"
STUDY = {  # its row → its answers
    "VSA": {
        "blocks of 64": BOTH,
        "blocks of 128": NEITHER,
        "variable blocks": NEITHER,
        "blocks of 64 with GQA": NEITHER,
    },
    "Triton-VSA": {
        "blocks of 64": BOTH,
        "blocks of 128": NEITHER,
        "variable blocks": NEITHER,
        "blocks of 64 with GQA": NEITHER,
    },
    "FA2-Sparse": {"blocks of 64": NEITHER, "blocks of 128": FORWARD, "blocks of 128 with GQA": FORWARD},
    "FlexAttention": {**dict.fromkeys(BLOCKS, BOTH), **dict.fromkeys(GQA_BLOCKS, BOTH)},
    "FlashInfer": {**dict.fromkeys(BLOCKS, FORWARD), **dict.fromkeys(GQA_BLOCKS, FORWARD)},
}


class SparseFeatures(PaperTable):
    label = "Features of block-sparse kernels"
    section = "sparse"
    number = "Table 2"
    order = 5
    caption = (
        f"Each kernel's own answers to calls of {LENGTH} tokens with a block mask for each KV head, 64 "
        "query heads, head dim 128 and bf16, where these are not what is asked: both passes, one of them, "
        "or no; in round brackets forward alone. The reason of a refusal is in the data. A kernel for "
        "blocks of 64 gets larger ones split. In square brackets, what the study says where that is another "
        "answer: as its readers report its table and as its released code does it, since the table itself "
        "was not at hand. Of the study's FA2-Sparse no source is known: the row here is written anew. Last, "
        "what came of the kernel's block-sparse cells in these records."
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        masks = {
            (question, heads): _mask(block, heads[1])
            for heads, asked in ((MHA, BLOCKS), (GQA, GQA_BLOCKS))
            for question, block in asked.items()
        }
        usual = masks["blocks of 128", MHA]
        sparse = table.loc[table.mask_family == "block-sparse"]
        rows = []
        for kernel in asked_kernels():
            answers = {question: answer(kernel, mask, heads) for (question, heads), mask in masks.items()}
            if all(passes == NEITHER for passes, _ in answers.values()):
                continue
            row = row if (row := STUDY_ROWS.get(kernel.name, "")) in STUDY else ""
            said = STUDY.get(row, {})
            answers[HEADS_DIM] = _those(kernel, usual, [{"head_dim": size} for size in HEAD_DIMS])
            answers[TYPES] = _those(kernel, usual, [{"dtype": dtype} for dtype in DTYPES])
            answers[LSE] = ("yes" if kernel.returns_lse else "no", "")
            rows += [
                (
                    kernel.name,
                    row,
                    question,
                    passes,
                    reason,
                    said.get(question, ""),
                    outcomes(sparse, kernel.name),
                )
                for question, (passes, reason) in answers.items()
            ]
        rows.sort(key=lambda entry: entry[1] == "")
        return pd.DataFrame(
            rows, columns=["kernel", "study_row", "question", "answer", "reason", "study", "records"]
        )

    def title(self, data: pd.DataFrame) -> str:
        blocks = data[data.question.isin([*BLOCKS, *GQA_BLOCKS])]
        whole = [
            str(kernel)
            for kernel, of_kernel in blocks.groupby("kernel", sort=False)
            if (of_kernel.answer == BOTH).all()
        ]
        return (
            f"{len(whole)} of {plural(data.kernel.nunique(), 'block-sparse kernel')} run all of these "
            f"blocks, with GQA and without, "
            f"forward and backward: {', '.join(whole) or 'none'}; {differences(data)}"
        )

    def cells(self, data: pd.DataFrame) -> Cells:
        questions = list(dict.fromkeys(data.question))
        rows = []
        for (kernel, study_row, records), of_kernel in grouped(
            data, ["kernel", "study_row", "records"], sort=False
        ):
            texts = {
                question: answered if said in ("", answered) else f"{answered} [{said}]"
                for question, answered, said in zip(
                    of_kernel.question, of_kernel.answer, of_kernel.study, strict=True
                )
            }
            rows.append(
                (
                    str(kernel),
                    str(study_row) or "–",
                    *(texts[question] for question in questions),
                    str(records),
                )
            )
        return Cells(
            ("kernel", "the study's row", *questions, "cells in the records"), tuple(rows), num_keys=2
        )


def _mask(block: int | None, num_kv_heads: int) -> Mask:
    """A block mask for each KV head, with blocks of that size; of any sizes for None."""
    if block is None:
        return build_mask(
            "block_sparse_variable", seqlen=LENGTH, num_kv_heads=num_kv_heads, mean_block=128, density=0.5
        )
    return build_mask(
        "block_sparse_uniform", seqlen=LENGTH, num_kv_heads=num_kv_heads, block=block, density=0.5
    )


def _those(kernel: Any, mask: Mask, options: list[dict[str, Any]]) -> tuple[str, str]:
    """The options with which the kernel runs, those that it runs forward alone in brackets; and why not the
    others."""
    words = []
    reasons = []
    for option in options:
        passes, reason = answer(kernel, mask, MHA, **option)
        word = str(*option.values())
        words += {BOTH: [word], FORWARD: [f"({word})"], BACKWARD: [f"{word} bwd"], NEITHER: []}[passes]
        reasons.append(reason)
    return ", ".join(words), "; ".join(dict.fromkeys(filter(None, reasons)))
