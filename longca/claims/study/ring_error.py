"""Claim 23: errors of a ring."""

from longca.claims.contract import Claim, decided
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
        told = "; ".join(self._told(name, [(pair, one) for pair, one in zip(found, observed, strict=True) if pair.first.strategy == name])
                         for name in RINGS)
        return decided(f"Error over that of Ulysses: {told}", observed, note=gpu_note(asked, "errors depend on rounding, not on speed"),
                       missing=missing(asked, self.gpus, strategy=(*RINGS, "ulysses"), mask=MASKS, world=(2, 4)))

    def _told(self, name, found):
        if not found:
            return f"{name} not measured"
        kernels = sorted({pair.first.kernel for pair, one in found if one.holds})
        over = f", all over {', '.join(kernels)}" if kernels and len(kernels) < len({pair.first.kernel for pair, _ in found}) else ""
        return f"{name} {span(pair.ratio for pair, _ in found)}×, 5 % more at {held([one for _, one in found])}{over}"
