"""Advice before a run: strategies, meshes, kernels and messages ranked by predicted time. Never imports
torch."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.lab.advice import many_gpus
    from longca.lab.advice.answer import Advice
    from longca.lab.advice.beside import predictions
    from longca.lab.advice.kept_fit import fit_sources
    from longca.lab.advice.ranking import advise
    from longca.lab.advice.sentences import idle_text
else:
    __getattr__, __dir__ = face(__name__)

__all__ = ["Advice", "advise", "fit_sources", "idle_text", "many_gpus", "predictions"]
