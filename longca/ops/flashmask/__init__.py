"""Attention under FlashMask's column form, in Triton."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.ops.flashmask import backward, forward
else:
    __getattr__, __dir__ = face(__name__)

__all__ = ["backward", "forward"]
