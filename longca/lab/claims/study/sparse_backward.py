"""Claim 11: backward of block-sparse kernels."""

from longca.lab.claims.as_study import of_study
from longca.lab.claims.contract import Claim, decided_in_parts
from longca.lab.claims.evidence import MHA, gpu_note, held, missing, points, span
from longca.lab.claims.pairs import pairs
from longca.lab.claims.parts import Part

KERNELS = {"vsa": "VSA", "vsa_triton": "VSA in Triton"}
MUCH = 2 / 3  # of forward at most; dense kernels keep more than that
LENGTHS = tuple(1024 * length for length in (32, 64, 96, 128))  # the study's
DENSITIES = ("0.2", "0.5", "0.8")
AXES = {
    "kernel": tuple(KERNELS),
    "block": ["64"],
    "density": DENSITIES,
    "heads": [MHA],
    "seqlen": LENGTHS,
    "direction": ("fwd", "bwd"),
}
WHERE = {
    "kind": "kernel",
    "kernel": tuple(KERNELS),
    "mask": "block_sparse_uniform",
    "block": 64,
    "heads": MHA,
}


class SparseBackward(Claim):
    number = 11
    label = "VSA is far slower backward than forward"
    sentence = (
        "On blocks of 64, the only ones that they have, VSA and its Triton version each reach backward at "
        "most two thirds of the TFLOP/s that they reach forward."
    )
    source = "Texts about the paper: shares from 20 % to 60 %, read by machine"
    trust = "second-hand"
    gpus = "one GPU"
    overturned_by = (
        "Backward of one of the two keeps more than two thirds of its forward rate on more than a quarter of "
        "its points"
    )

    def judge(self, table):
        asked = points(table, ok=False, **WHERE)
        parts = [self._part(asked, kernel) for kernel in KERNELS]
        return decided_in_parts(*parts, missing=missing(asked, self.gpus, **AXES), note=gpu_note(asked))

    def judge_as_study(self, table):
        asked = points(of_study(table), ok=False, seqlen=LENGTHS, density=DENSITIES, **WHERE)
        lacking = missing(asked, self.gpus, study="as-study", mask=["block_sparse_uniform"], **AXES)
        parts = [self._part(asked, kernel) for kernel in KERNELS]
        return decided_in_parts(
            *parts, missing=lacking, note="The Triton version is a later one of the file in the study's code."
        )

    def _part(self, asked, kernel):
        backward, forward = (
            [point for point in asked if point.kernel == kernel and point.direction == direction]
            for direction in ("bwd", "fwd")
        )
        compared = pairs(backward, forward, "direction")
        observed = [pair.observed(pair.ratio <= MUCH, f"{kernel} backward", "forward") for pair in compared]
        finding = (
            f"backward {KERNELS[kernel]} reaches {span(pair.ratio for pair in compared)}× forward, "
            f"at most two thirds at {held(observed)}"
            if compared
            else f"{KERNELS[kernel]} is not measured"
        )
        return Part(KERNELS[kernel], finding, observed)
