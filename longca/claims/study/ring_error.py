"""Claim 23: errors of a ring."""

from longca.claims.contract import Claim, decided, in_parts
from longca.claims.evidence import HETEROGENEOUS, REGULAR, gpu_note, held, missing, pairs, points, span

RINGS = ("paper_style_ring", "ring_p2p")  # the study's schedule done again, and this project's
MORE = 1.05  # times: rounding alone moves an error by less, since the same sums are rounded in another order
ERRORS = {"fwd": "error_out", "bwd": "error_dq"}
MASKS = ("full", "causal", "full_document", "causal_document")


class RingError(Claim):
    number = 23
    label = "A ring accumulates numerical error"
    sentence = ("With the same kernel, the error of Ring P2P against float64 is at least 5 % above that of Ulysses, in the result and in "
                "the gradient of q.")
    source = "Texts about the paper, which says so without a number"
    trust = "second-hand"
    gpus = "2–4 GPUs"
    overturned_by = "A ring's error is within 5 % of that of Ulysses on more than a quarter of the points"

    def judge(self, table):
        asked = points(table, ok=False, kind="cp", strategy=(*RINGS, "ulysses"), mask=(*REGULAR, *HETEROGENEOUS))
        found = []
        for direction, column in ERRORS.items():
            there = [point for point in asked if point.direction == direction]
            found += pairs([point for point in there if point.strategy in RINGS], [point for point in there if point.strategy == "ulysses"],
                           "strategy", column=column)
        observed = [pair.observed(pair.ratio >= MORE, f"{pair.first.method} error", "ulysses") for pair in found]
        parts = (self._part(name, [(pair, one) for pair, one in zip(found, observed, strict=True) if pair.first.strategy == name])
                 for name in RINGS)
        return decided(in_parts(*parts), observed, note=gpu_note(asked, "errors depend on rounding, not on speed"),
                       missing=missing(asked, self.gpus, strategy=(*RINGS, "ulysses"), mask=MASKS, world=(2, 4)))

    def _part(self, name, found):
        if not found:
            return f"{name} is not measured", []
        observed = [one for _, one in found]
        kernels = sorted({pair.first.kernel for pair, one in found if one.holds})
        names = " or ".join(filter(None, (", ".join(kernels[:-1]), *kernels[-1:])))
        over = f", all with {names}" if kernels and len(kernels) < len({pair.first.kernel for pair, _ in found}) else ""
        ratios = span(pair.ratio for pair, _ in found)
        return f"the error of {name} is {ratios}× that of Ulysses, 5 % more at {held(observed)}{over}", observed
