"""Claim 10: FlashInfer at two sizes of blocks."""

from longca.lab.claims.as_study import of_study
from longca.lab.claims.contract import Claim, decided
from longca.lab.claims.evidence import GQA, MHA, gpu_note, held, missing, points, span
from longca.lab.claims.failures import refused_note
from longca.lab.claims.pairs import pairs

ALMOST_DOUBLE = 1.6  # times: "almost doubles" and "much faster" are the words
LENGTHS = tuple(1024 * length for length in (32, 64, 96, 128))  # the study's
DENSITIES = ("0.2", "0.5", "0.8")
WHERE = {"kind": "kernel", "kernel": "flashinfer", "mask": "block_sparse_uniform", "direction": "fwd"}


class FlashinferBlocks(Claim):
    number = 10
    label = "FlashInfer: blocks of 128 almost double the rate"
    sentence = (
        "FlashInfer's rate on blocks of 128 is at least 1.6 times that on blocks of 64 of the same density."
    )
    source = "Texts about the paper: its tables of block-sparse rates"
    trust = "second-hand"
    gpus = "one GPU"
    overturned_by = "The two rates lie within a factor of 1.6 on more than a quarter of the points"

    def judge(self, table):
        asked = points(table, ok=False, **WHERE)
        lacking = missing(
            asked, self.gpus, block=("64", "128"), density=DENSITIES, heads=(GQA, MHA), seqlen=LENGTHS
        )
        return self._verdict(asked, lacking, gpu_note(asked))

    def judge_as_study(self, table):
        asked = points(
            of_study(table), ok=False, seqlen=LENGTHS, density=DENSITIES, heads=(GQA, MHA), **WHERE
        )
        lacking = missing(
            asked,
            self.gpus,
            study="as-study",
            kernel=["flashinfer"],
            mask=["block_sparse_uniform"],
            block=("64", "128"),
            density=DENSITIES,
            heads=(GQA, MHA),
            seqlen=LENGTHS,
            direction=["fwd"],
        )
        return self._verdict(asked, lacking)

    def _verdict(self, asked, lacking, *notes):
        compared = pairs(
            [point for point in asked if point.params["block"] == "128"],
            [point for point in asked if point.params["block"] == "64"],
            "block",
        )
        observed = [pair.observed(pair.ratio >= ALMOST_DOUBLE, "blocks of 128", "of 64") for pair in compared]
        finding = (
            f"Blocks of 128 reach {span(pair.ratio for pair in compared)}× the rate of blocks of 64; "
            f"{ALMOST_DOUBLE}× or more at {held(observed)}"
        )
        note = " ".join(filter(None, (*notes, refused_note(asked))))
        return decided(finding, observed, note=note, missing=lacking)
