"""Claim 9: FlashInfer beside FA2-Sparse."""

from longca.lab.claims.as_study import STAND_INS, stand_in
from longca.lab.claims.contract import Claim, Gaps, decided, decided_in_parts
from longca.lab.claims.evidence import GQA, MHA, gpu_note, held, missing, points, span
from longca.lab.claims.pairs import pairs

KERNELS = ("flashinfer", "fa2_sparse")
LENGTHS = tuple(1024 * length for length in (32, 64, 96, 128))  # the study's
DENSITIES = ("0.2", "0.5", "0.8")
NEEDED = (
    "The study's FA2-Sparse, which its released code has not, beside FlashInfer on blocks of 128, 32K to 128K"
)


class FlashinferOverFa2Sparse(Claim):
    number = 9
    label = "Blocks of 128: FlashInfer beats FA2-Sparse"
    sentence = "Forward on blocks of 128 FlashInfer is faster than FA2-Sparse."
    source = "A text about the paper with one cell of its tables: 414.93 against 315.12 TFLOP/s"
    trust = "second-hand"
    gpus = "one GPU"
    overturned_by = "FA2-Sparse is level or faster on more than a quarter of the points"

    def judge(self, table):
        asked = points(
            table,
            ok=False,
            kind="kernel",
            kernel=KERNELS,
            mask="block_sparse_uniform",
            direction="fwd",
            block=128,
        )
        compared = pairs(
            [point for point in asked if point.kernel == "flashinfer"],
            [point for point in asked if point.kernel == "fa2_sparse"],
            "kernel",
        )
        observed = [pair.observed(pair.order == "more") for pair in compared]
        ratios = span(pair.ratio for pair in compared)
        finding = f"FlashInfer is faster at {held(observed)}, at {ratios}× FA2-Sparse (ours)"
        note = f"{gpu_note(asked)} FA2-Sparse is {STAND_INS['fa2_sparse']}. Both get the same masks."
        return decided(
            finding,
            observed,
            note=note.strip(),
            missing=missing(
                asked, self.gpus, kernel=KERNELS, density=DENSITIES, heads=(GQA, MHA), seqlen=LENGTHS
            ),
        )

    def judge_as_study(self, table):
        texts = (f"{NEEDED} (needs {self.gpus} and that kernel)",)
        return decided_in_parts(stand_in("fa2_sparse", "FA2-Sparse"), missing=Gaps(texts))
