"""Claim 8: the order of block-sparse kernels at blocks of 64."""

from longca.claims.contract import Claim, decided, in_parts
from longca.claims.evidence import MHA, gpu_note, missing, pairs, points, span
from longca.core.units import format_length

KERNELS = ("vsa", "vsa_triton", "flashinfer")
LENGTHS = tuple(1024 * length for length in (32, 64, 96, 128))  # the study's


class VsaOrder(Claim):
    number = 8
    label = "Blocks of 64: VSA, then VSA in Triton, then FlashInfer"
    sentence = ("Forward on blocks of 64, half of them kept, 64 heads each with KV of its own: VSA is faster than its Triton version, and "
                "that faster than FlashInfer.")
    source = "A text about the first version of the paper"
    trust = "second-hand"
    gpus = "one GPU"
    overturned_by = "The Triton version reaches VSA's rate, or FlashInfer reaches that of the Triton version"

    def judge(self, table):
        asked = points(table, ok=False, kind="kernel", kernel=KERNELS, mask="block_sparse_uniform", direction="fwd", heads=MHA, block=64,
                       density=0.5)
        vsa, triton, flashinfer = ([point for point in asked if point.kernel == name] for name in KERNELS)
        first, second = pairs(vsa, triton, "kernel"), pairs(triton, flashinfer, "kernel")
        ahead, behind = ([pair.observed(pair.order == "more") for pair in those] for those in (first, second))
        finding = in_parts((f"VSA is at {span(pair.ratio for pair in first)}× its Triton version", ahead),
                           (f"the Triton version is at {span(pair.ratio for pair in second)}× FlashInfer", behind))
        return decided(finding, ahead, behind,
                       part=f"{span((pair.first.seqlen for pair in first + second), show=format_length)} tokens",
                       missing=missing(asked, self.gpus, kernel=KERNELS, seqlen=LENGTHS),
                       note=f"{gpu_note(asked)} All kernels get the same masks; the study gave FlashInfer others.".strip())
