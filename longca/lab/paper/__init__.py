"""The report of the whole study: its figures, tables and claims, made again from anybody's records."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.lab.paper.build import build_paper
    from longca.lab.paper.contract import Cells, PaperTable
else:
    __getattr__, __dir__ = face(__name__)

__all__ = ["Cells", "PaperTable", "build_paper"]
