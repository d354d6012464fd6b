"""Claim 6: one kernel over all masks."""

from collections import defaultdict

from longca.lab.claims.as_study import STUDY_DENSE, of_study, shown, stand_in
from longca.lab.claims.contract import Claim, decided_in_parts
from longca.lab.claims.evidence import (
    DENSE,
    GQA,
    HETEROGENEOUS,
    LENGTHS,
    MHA,
    REGULAR,
    gpu_note,
    of_one_protocol,
    points,
    span,
)
from longca.lab.claims.gaps import missing_dense
from longca.lab.claims.parts import Observation, of_methods
from longca.lab.store.text import number

MASKS = (*REGULAR, *HETEROGENEOUS)
SEVERAL = 2.0  # best mask over worst: the weakest reading of "several times"
FEWEST_MASKS = 6  # the regular ones; fewer say little about masks
COUNTED = "Sliding windows have the FLOPs that the study counted: those of one side, while both sides run."


class MasksDecide(Claim):
    number = 6
    label = "One kernel's rate varies several times over masks"
    sentence = (
        "At one length, the rate of one and the same kernel on its best mask is at least twice that "
        "on its worst."
    )
    source = "Texts about the paper: its figure of forward rates at 8K, by mask"
    trust = "second-hand"
    gpus = "one GPU"
    overturned_by = "For one kernel all masks lie within a factor of two in more than a quarter of its cases"

    def judge(self, table):
        asked = self._asked(table, DENSE)
        return decided_in_parts(
            *self._parts(asked, DENSE),
            note=gpu_note(asked),
            missing=missing_dense(asked, self.gpus, "", DENSE, MASKS),
        )

    def judge_as_study(self, table):
        asked = self._asked(of_study(table), STUDY_DENSE)
        return decided_in_parts(
            *self._parts(asked, STUDY_DENSE),
            stand_in("flashmask", "FlashMask"),
            note=COUNTED if asked else "",
            missing=missing_dense(asked, self.gpus, "as-study", STUDY_DENSE, MASKS),
        )

    def _asked(self, table, kernels):
        return points(
            table, ok=False, kind="kernel", kernel=kernels, mask=MASKS, heads=(GQA, MHA), seqlen=LENGTHS
        )

    def _parts(self, asked, kernels):
        """A part for each kernel: some may differ over masks where others do not.

        A case has at least six masks. One that lacks further masks which the kernel runs is undecided while
        its range is narrow: these masks may still widen it.
        """
        groups = defaultdict(list)
        for point in asked:
            if point.ok:
                groups[point.kernel, point.seqlen, point.direction, point.heads, point.device].append(point)
        cases = {shown(kernel): [] for kernel in kernels}
        for group in map(of_one_protocol, groups.values()):
            if len({point.mask for point in group}) >= FEWEST_MASKS:
                cases[group[0].name].append(sorted(group, key=lambda point: point.rate))
        decided = {
            name: [case for case in own if self._is_decided(case, asked)] for name, own in cases.items()
        }
        return of_methods(
            f"masks differ by {number(SEVERAL, 1)}× or more for",
            {name: [self._observed(case) for case in own] for name, own in decided.items()},
            ratios={
                name: f"{span(case[-1].rate / case[0].rate for case in own)}×"
                for name, own in decided.items()
            },
            undecided={name: len(own) - len(decided[name]) for name, own in cases.items()},
        )

    def _is_decided(self, case, asked):
        runs = {point.mask for point in asked if point.kernel == case[0].kernel and point.ok}
        return self._is_wide(case) or {point.mask for point in case} >= runs

    def _is_wide(self, group):
        return group[-1].rate >= SEVERAL * group[0].rate

    def _observed(self, group):
        worst = group[0]
        best = group[-1]
        text = (
            f"{best.name} {best.size}: {number(best.rate)} on {best.mask}, "
            f"{number(worst.rate)} on {worst.mask} ({number(best.rate / worst.rate, 2)}×)"
        )
        return Observation(text, self._is_wide(group), best.cell_ids + worst.cell_ids)
