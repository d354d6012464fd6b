"""Claim 8: the order of block-sparse kernels at blocks of 64."""

from longca.core import format_length
from longca.lab.claims.as_study import of_study
from longca.lab.claims.contract import Claim, decided_in_parts
from longca.lab.claims.evidence import MHA, gpu_note, held, missing, points, span
from longca.lab.claims.failures import refused_note
from longca.lab.claims.pairs import pairs
from longca.lab.claims.parts import Part

KERNELS = ("vsa", "vsa_triton", "flashinfer")
LENGTHS = tuple(1024 * length for length in (32, 64, 96, 128))  # the study's
WHERE = {
    "kind": "kernel",
    "kernel": KERNELS,
    "mask": "block_sparse_uniform",
    "direction": "fwd",
    "heads": MHA,
    "block": 64,
    "density": 0.5,
}
SAME_MASKS = "All kernels get the same masks; the study gave FlashInfer others of the same density."


class VsaOrder(Claim):
    number = 8
    label = "Blocks of 64: VSA, then VSA in Triton, then FlashInfer"
    sentence = (
        "Forward on blocks of 64, half of them kept, 64 heads each with KV of its own: VSA is faster "
        "than its Triton version, and that faster than FlashInfer."
    )
    source = "A text about the first version of the paper"
    trust = "second-hand"
    gpus = "one GPU"
    overturned_by = (
        "At one of the four lengths or more the Triton version reaches VSA's rate, or FlashInfer reaches "
        "that of the Triton version"
    )

    def judge(self, table):
        asked = points(table, ok=False, **WHERE)
        lacking = missing(asked, self.gpus, kernel=KERNELS, seqlen=LENGTHS)
        return self._verdict(asked, lacking, gpu_note(asked))

    def judge_as_study(self, table):
        asked = points(of_study(table), ok=False, seqlen=LENGTHS, **WHERE)
        lacking = missing(
            asked,
            self.gpus,
            study="as-study",
            kernel=KERNELS,
            mask=["block_sparse_uniform"],
            block=["64"],
            density=["0.5"],
            heads=[MHA],
            seqlen=LENGTHS,
            direction=["fwd"],
        )
        return self._verdict(asked, lacking)

    def _verdict(self, asked, lacking, *notes):
        vsa, triton, flashinfer = ([point for point in asked if point.kernel == name] for name in KERNELS)
        first = pairs(vsa, triton, "kernel")
        second = pairs(triton, flashinfer, "kernel")
        ahead, behind = ([pair.observed(pair.order == "more") for pair in group] for group in (first, second))
        lengths = span((pair.first.seqlen for pair in first + second), show=format_length)
        return decided_in_parts(
            Part(
                "VSA over Triton",
                f"VSA is faster at {held(ahead)}, at {span(pair.ratio for pair in first)}× its Triton "
                "version",
                ahead,
            ),
            Part(
                "Triton over FlashInfer",
                f"the Triton version is faster at {held(behind)}, at "
                f"{span(pair.ratio for pair in second)}× FlashInfer",
                behind,
            ),
            missing=lacking,
            part=f"{lengths} tokens" if first or second else "",
            note=" ".join(filter(None, (*notes, SAME_MASKS, refused_note(asked)))),
        )
