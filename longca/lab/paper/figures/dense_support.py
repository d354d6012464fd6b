"""Static masks that each kernel runs, beside what the study says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.core import Registry
from longca.lab.paper.analysis.select import MHA
from longca.lab.paper.analysis.support import (
    BOTH,
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

MOST_REGULAR = 6  # masks 1 to 6 of the study are those that it calls regular
REGULAR_ONLY = ("FA2", "FA3", "cuDNN")
ALL_MASKS = ("Naive", "SDPA", "FlexAttention", "FlashMask")
# of the masks that kernels are asked about: documents have several blocks
CORPUS = "pile"
LENGTH = 8192


class DenseSupport(PaperTable):
    label = "Masks of dense kernels"
    section = "dense"
    number = "Table 1"
    order = 5
    caption = (
        f"Each kernel's own answers to calls of {LENGTH} tokens, 64 query and 64 KV heads, head dim 128, "
        "bf16: both passes, one of them, or no; the reason of a refusal is in the data. In square brackets, "
        "what the study says where that is another answer: FlashAttention and cuDNN run its six regular "
        "masks, the others all twelve, as readers report its table and as its released code does it. Last, "
        "what came of the kernel's cells under these masks in these records."
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        patterns = sorted(
            (
                pattern
                for pattern in Registry("mask").load_all()
                if pattern.number is not None and pattern.family != "dynamic"
            ),
            key=lambda pattern: pattern.number,
        )
        masks = {
            pattern: build_mask(
                pattern.name, seqlen=LENGTH, corpus=CORPUS if pattern.uses_documents else None
            )
            for pattern in patterns
        }
        dense = table.loc[(table.mask_family != "block-sparse") & (table.kind == "kernel")]
        rows = []
        for kernel in asked_kernels():
            answers = {pattern: answer(kernel, mask, MHA) for pattern, mask in masks.items()}
            if all(passes == NEITHER for passes, _ in answers.values()):
                continue
            records = outcomes(dense, kernel.name)
            row = STUDY_ROWS.get(kernel.name)
            for pattern, (passes, reason) in answers.items():
                runs = row in ALL_MASKS or pattern.number <= MOST_REGULAR
                said = (BOTH if runs else NEITHER) if row in (*ALL_MASKS, *REGULAR_ONLY) else ""
                rows.append((kernel.name, pattern.name, passes, reason, said, records))
        return pd.DataFrame(rows, columns=["kernel", "question", "answer", "reason", "study", "records"])

    def title(self, data: pd.DataFrame) -> str:
        whole = [
            str(kernel)
            for kernel, of_kernel in data.groupby("kernel", sort=False)
            if (of_kernel.answer == BOTH).all()
        ]
        return (
            f"{len(whole)} of {plural(data.kernel.nunique(), 'dense kernel')} run all "
            f"{data.question.nunique()} static masks forward and backward: "
            f"{', '.join(whole) or 'none'}; {differences(data)}"
        )

    def cells(self, data: pd.DataFrame) -> Cells:
        questions = list(dict.fromkeys(data.question))
        rows = []
        for (kernel, records), of_kernel in grouped(data, ["kernel", "records"], sort=False):
            texts = (
                answered if said in ("", answered) else f"{answered} [{said}]"
                for answered, said in zip(of_kernel.answer, of_kernel.study, strict=True)
            )
            rows.append((str(kernel), *texts, str(records)))
        return Cells(("kernel", *questions, "cells in the records"), tuple(rows))
