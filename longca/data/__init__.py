"""Corpora of document lengths, the sampler, and corpora from a user's own files."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.data.build import build_corpus
    from longca.data.sampler import sample_documents
else:
    __getattr__, __dir__ = face(__name__)

__all__ = ["build_corpus", "sample_documents"]
