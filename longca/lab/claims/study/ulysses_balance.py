"""Claim 17: balance and scale of Ulysses."""

from longca.lab.claims.contract import Claim, decided_in_parts
from longca.lab.claims.evidence import (
    HETEROGENEOUS,
    REGULAR,
    gpu_note,
    held,
    missing,
    num_hosts,
    points,
    reach,
)
from longca.lab.claims.parts import Observation, Part
from longca.lab.claims.schedules import WORLDS, lacking, not_here
from longca.lab.store.text import number

# %: what the slowest rank takes longer than the median rank; timers and clocks alone make about one
BALANCED = 2.0
MASKS = ("full", "full_document")
WAITING = "Fast ranks wait for the exchange at the end, so that equal times show only that no rank was late."


class UlyssesBalance(Claim):
    number = 17
    label = "Ulysses balances perfectly; heads cap its scale"
    sentence = (
        "Under Ulysses the slowest rank takes at most 2 % longer than the median rank, whatever the mask, "
        "and more ranks than query heads are refused."
    )
    source = "Texts about the paper and its code: 64 heads, so that 64 GPUs are the most"
    trust = "second-hand"
    gpus = "several nodes"
    overturned_by = (
        "A rank is later than 2 % on more than a quarter of the points, or Ulysses runs on more ranks "
        "than heads"
    )

    def judge(self, table):
        asked = points(table, ok=False, kind="cp", strategy="ulysses", mask=(*REGULAR, *HETEROGENEOUS))
        timed = [(point, point.value("straggler_percent")) for point in asked if point.ok]
        timed = [(point, value) for point, value in timed if value == value]
        few = num_hosts(asked) < 2  # nothing about ranks of several nodes, which make others late
        even = [
            Observation(
                f"{point.method} {number(value, 2)} % later: {point.where}", value <= BALANCED, point.cell_ids
            )
            for point, value in timed
        ]
        late = (
            f"the slowest rank is at most {number(max(value for _, value in timed), 2)} % later, "
            f"within {number(BALANCED, 2)} % at {held(even)}"
            if timed
            else "no rank is timed"
        )
        parts = Part("the balance", late, even, few), self._scale(asked, few)
        return decided_in_parts(
            *parts,
            part=reach(asked) if few and timed else "",
            missing=missing(asked, self.gpus, mask=MASKS, world=WORLDS),
            note=f"{WAITING} {gpu_note(asked)}".strip(),
        )

    def judge_as_study(self, table):
        return decided_in_parts(
            *not_here("Ulysses"), missing=lacking([], "ulysses", masks=MASKS, strategies=())
        )

    def _scale(self, asked, few):
        beyond = [
            point
            for point in asked
            if point.world > point.num_q_heads and point.statuses & {"ok", "unsupported"}
        ]
        capped = [
            Observation(f"{point.method} runs {point.where}", not point.ok, point.cell_ids)
            for point in beyond
        ]
        if not beyond:
            return Part("the cap", "more ranks than heads were not tried")
        why = (
            ", since ranks without heads only take part in the exchange"
            if any(point.ok for point in beyond)
            else ""
        )
        return Part("the cap", f"more ranks than heads are refused at {held(capped)}{why}", capped, few)
