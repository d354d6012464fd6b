"""The study's claims as code: each is judged by records alone. Never imports torch."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.lab.claims import evidence, pairs
    from longca.lab.claims.by_gpu import judged
    from longca.lab.claims.contract import (
        AS_STUDY,
        READINGS,
        REPAIRED,
        STUDY,
        Claim,
        Verdict,
        Verdicts,
        all_claims,
        decided,
        summary,
    )
    from longca.lab.claims.parts import MEANINGS, OPEN, Status
    from longca.lab.claims.rows import STUDY_GPU
else:
    __getattr__, __dir__ = face(__name__)

__all__ = [
    "AS_STUDY",
    "MEANINGS",
    "OPEN",
    "READINGS",
    "REPAIRED",
    "STUDY",
    "STUDY_GPU",
    "Claim",
    "Status",
    "Verdict",
    "Verdicts",
    "all_claims",
    "decided",
    "evidence",
    "judged",
    "pairs",
    "summary",
]
