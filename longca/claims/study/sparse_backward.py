"""Claim 11: backward of block-sparse kernels."""

from longca.claims.contract import Claim, decided, in_parts
from longca.claims.evidence import MHA, gpu_note, held, missing, of, pairs, points, span

KERNELS = ("vsa", "vsa_triton")
MUCH = 2 / 3  # of forward at most; dense kernels keep more than that
LENGTHS = tuple(1024 * length for length in (32, 64, 96, 128))  # the study's
DENSITIES = ("0.2", "0.5", "0.8")


class SparseBackward(Claim):
    number = 11
    label = "VSA is far slower backward than forward"
    sentence = "Backward, VSA and its Triton version each reach at most two thirds of the TFLOP/s that they reach forward."
    source = "Texts about the paper: shares from 20 % to 60 %, read by machine"
    trust = "second-hand"
    gpus = "one GPU"
    overturned_by = "Backward keeps more than two thirds of the forward rate on more than a quarter of the points"

    def judge(self, table):
        asked = points(table, ok=False, kind="kernel", kernel=KERNELS, mask="block_sparse_uniform")
        found = pairs([point for point in asked if point.direction == "bwd"],
                      [point for point in asked if point.direction == "fwd"], "direction")
        observed = [pair.observed(pair.ratio <= MUCH, f"{pair.first.kernel} backward", "forward") for pair in found]
        slower = sum(pair.order == "less" for pair in found)
        parts = []
        for kernel in KERNELS:
            here = [(pair.ratio, one) for pair, one in zip(found, observed, strict=True) if pair.first.kernel == kernel]
            those = [one for _, one in here]
            if here:
                parts.append((f"backward {kernel} reaches at most two thirds of forward at {held(those)} "
                              f"({span(ratio for ratio, _ in here)}×)", those))
        finding = in_parts(*parts, (f"backward is slower at {of(slower, len(found), 'point')}", []))
        return decided(finding, observed, note=gpu_note(asked),
                       missing=missing(asked, self.gpus, kernel=KERNELS, block=["64"], density=DENSITIES, heads=[MHA], seqlen=LENGTHS,
                                       direction=("fwd", "bwd")))
