"""Claim 23: errors of a ring."""

from collections import defaultdict
from statistics import median

from longca.lab.claims.as_study import of_study
from longca.lab.claims.contract import Claim, decided_in_parts
from longca.lab.claims.evidence import HETEROGENEOUS, REGULAR, gpu_note, missing, points, reach, span
from longca.lab.claims.pairs import pairs
from longca.lab.claims.parts import Part, of_methods
from longca.lab.claims.schedules import NAMES, RING

MORE = 1.002  # times: in every record, what adds in float32 alone is within 0.1 % above Ulysses or less
ERRORS = {
    "the result": ("fwd", "error_out"),
    "dQ": ("bwd", "error_dq"),
    "dK": ("bwd", "error_dk"),
    "dV": ("bwd", "error_dv"),
}
MASKS = ("full", "causal", "full_document", "causal_document")  # the study's
DIRECTIONS = ("fwd", "bwd")
OF_STUDY = (
    f"Judged by {NAMES[RING]}, over any kernel and on any GPU: how much it adds to a kernel's error hardly "
    "depends on these. Ulysses is this project's; it gives each head to one call, and so has the kernel's "
    "own error."
)


class RingError(Claim):
    number = 23
    label = "A ring accumulates numerical error"
    sentence = (
        "With the same kernel, the error of Ring P2P against float64 is above that of Ulysses, in the "
        "result and in the gradients of q, k and v."
    )
    source = "Texts about the paper, which says so without a number"
    trust = "second-hand"
    gpus = "2–4 GPUs"
    quantity = "error"
    overturned_by = (
        "With one kernel a ring's error in one of these is not above that of Ulysses on more than a quarter "
        "of the points"
    )

    def judge(self, table):
        asked = points(
            table, ok=False, kind="cp", strategy=("ring_p2p", "ulysses"), mask=(*REGULAR, *HETEROGENEOUS)
        )
        return decided_in_parts(
            *self._parts(asked, "ring_p2p"),
            note=gpu_note(asked, "errors depend on rounding, not on speed"),
            missing=missing(asked, self.gpus, strategy=("ring_p2p", "ulysses"), mask=MASKS, world=(2, 4)),
        )

    def judge_as_study(self, table):
        rows = of_study(table, any_gpu=True, any_draw=True)
        asked = points(rows, ok=False, kind="cp", strategy=(RING, "ulysses"), mask=MASKS)
        lacking = missing(
            [point for point in asked if point.strategy == RING],
            self.gpus,
            study="h200-cp",
            strategy=[RING],
            mask=MASKS,
            world=(2, 4),
            direction=DIRECTIONS,
        )
        return decided_in_parts(
            *self._parts(asked, RING),
            missing=lacking,
            part=reach(asked) if asked else "",
            note=" ".join(filter(None, (OF_STUDY, self._growth(asked)))),
        )

    def _beside(self, asked, ring):
        """(what has the error, the ring beside Ulysses) for the result and each gradient."""
        for name, (direction, column) in ERRORS.items():
            there = [point for point in asked if point.direction == direction]
            yield (
                name,
                pairs(
                    [point for point in there if point.strategy == ring],
                    [point for point in there if point.strategy == "ulysses"],
                    "strategy",
                    column=column,
                ),
            )

    def _parts(self, asked, ring):
        """A part for each error and kernel: some kernels round what a ring adds, and others do not."""
        for name, compared in self._beside(asked, ring):
            by_kernel = {
                kernel: [pair for pair in compared if pair.first.kernel == kernel]
                for kernel in sorted({pair.first.kernel for pair in compared})
            }
            if not by_kernel:
                yield Part(name, f"the error of {name} is not measured")
            yield from of_methods(
                f"{name} has more error with",
                {
                    kernel: [
                        pair.observed(pair.ratio > MORE, f"{name}: {pair.first.method} error", "ulysses")
                        for pair in those
                    ]
                    for kernel, those in by_kernel.items()
                },
                ratios={
                    kernel: f"{span(pair.ratio for pair in those)}×" for kernel, those in by_kernel.items()
                },
            )

    def _growth(self, asked):
        """A sentence with the ratios of errors under FULL on several numbers of ranks."""
        ratios = defaultdict(lambda: defaultdict(list))
        for name, compared in self._beside(asked, RING):
            for pair in compared:
                if pair.first.mask == "full":
                    ratios[name][pair.first.world].append(pair.ratio)
        worlds = sorted({world for of_name in ratios.values() for world in of_name})
        if len(worlds) < 2:
            return ""
        texts = (
            f"{name} {', '.join(f'{median(of_name[world]):.2f}×' for world in worlds if of_name[world])}"
            for name, of_name in ratios.items()
        )
        return f"Under FULL on {' and '.join(map(str, worlds))} ranks: {'; '.join(texts)}."
