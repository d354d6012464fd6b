"""Claim 18: LoongTrain beside USP."""

from longca.lab.claims.as_study import without_compat
from longca.lab.claims.contract import Claim, decided_in_parts
from longca.lab.claims.evidence import gpu_note, held, missing, points, reach, span
from longca.lab.claims.pairs import pairs
from longca.lab.claims.parts import Part
from longca.lab.claims.schedules import lacking, not_here

FEWEST = 4  # ranks: on fewer neither is a hybrid
# ranks: with eight in each Ulysses group, the fewest whose ring has several windows, which tell the two apart
WINDOWS = 32
WORLDS = (32, 64, 96)
FEW_RANKS = f"Below {WINDOWS} ranks the two differ in their groups of ranks, not in windows."
MASKS = ("full", "causal", "full_document", "causal_document")  # the study's


class LoongtrainOverUsp(Claim):
    number = 18
    label = "LoongTrain is slightly ahead of USP, forward alone"
    sentence = "Forward LoongTrain is faster than USP; backward it is not."
    source = "Texts about the paper; figures of its authors' other project do not show the lead"
    trust = "second-hand"
    gpus = "several nodes"
    overturned_by = (
        "On more than a quarter of the points on 32 GPUs or more USP is level forward, or LoongTrain is "
        "faster backward"
    )

    def judge(self, table):
        asked = points(
            without_compat(table),
            ok=False,
            kind="cp",
            strategy=("loongtrain", "usp"),
            mask=MASKS,
            world=lambda ranks: ranks >= FEWEST,
        )
        compared = pairs(
            [point for point in asked if point.strategy == "loongtrain"],
            [point for point in asked if point.strategy == "usp"],
            "strategy",
        )
        few = max((pair.first.world for pair in compared), default=0) < WINDOWS
        if not few:
            compared = [pair for pair in compared if pair.first.world >= WINDOWS]
        forward = [pair for pair in compared if pair.first.direction == "fwd"]
        backward = [pair for pair in compared if pair.first.direction == "bwd"]
        ahead = [pair.observed(pair.order == "more") for pair in forward]
        level = [pair.observed(pair.order != "more") for pair in backward]
        parts = [
            Part(
                "forward",
                f"LoongTrain is ahead forward at {held(ahead)} ({span(pair.ratio for pair in forward)}× USP)",
                ahead,
                few,
            ),
            Part(
                "backward",
                f"it is not ahead backward at {held(level)} ({span(pair.ratio for pair in backward)}×)",
                level,
                few,
            ),
        ]
        measured = [
            part if part.observations else Part(part.name, f"{part.name} is not measured") for part in parts
        ]
        return decided_in_parts(
            *measured,
            part=reach([pair.first for pair in compared]) if few and compared else "",
            missing=missing(asked, self.gpus, strategy=("loongtrain", "usp"), mask=MASKS, world=WORLDS),
            note=" ".join(filter(None, (FEW_RANKS, gpu_note(asked)))),
        )

    def judge_as_study(self, table):
        gaps = lacking([], "usp", "loongtrain", masks=MASKS, strategies=())
        return decided_in_parts(*not_here("USP", "LoongTrain"), missing=gaps)
