"""longca measures attention for long contexts, from one kernel to context parallelism over many GPUs.

For notebooks and scripts, each loaded at its first use:

    mask = longca.build_mask("causal_document", seqlen="8K")     # or Mask.from_documents, from_cu_seqlens, …
    out = longca.attention(q, k, v, mask)                        # the quickest right operator here
    longca.warm(64, 8, head_dim=128)                             # compiles all that it can need, before training
    cp = longca.context_parallel(mask, group)                    # the same over many GPUs
    frame = longca.load("quick")                                 # records of a study as a DataFrame
    advice = longca.advise("causal_document", seqlen="1M", gpus=64)   # ways to run it, by predicted time
    choice = longca.choose("causal", seqlen="32K", gpu="h100")   # the fastest kernels, from records
"""  # noqa: E501

from typing import TYPE_CHECKING

from longca.core import VERSION
from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.cp import context_parallel
    from longca.dispatch import attention, warm
    from longca.lab.advice import advise
    from longca.lab.report.decide import choose
    from longca.lab.store.frame import load
    from longca.masks import Mask, build_mask
else:
    __getattr__, __dir__ = face(__name__)

__version__ = VERSION
__all__ = ["Mask", "advise", "attention", "build_mask", "choose", "context_parallel", "load", "warm"]
