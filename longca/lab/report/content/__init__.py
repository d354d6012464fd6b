"""Contents of a page: typed data, each text made once, and the data shipped to its scripts."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.lab.report.content import decided, earlier, method_notes
    from longca.lab.report.content.blanks import NOT_ASKED, Blank, Outcomes, words_text
    from longca.lab.report.content.decided import Decided
    from longca.lab.report.content.packing import compressed, is_same_page, page_data, script_json, unpacked
    from longca.lab.report.content.page import Frame, fields_of
    from longca.lab.report.content.record_layout import FILTERS, PICK, templates
else:
    __getattr__, __dir__ = face(__name__)

__all__ = [
    "FILTERS",
    "NOT_ASKED",
    "PICK",
    "Blank",
    "Decided",
    "Frame",
    "Outcomes",
    "compressed",
    "decided",
    "earlier",
    "fields_of",
    "is_same_page",
    "method_notes",
    "page_data",
    "script_json",
    "templates",
    "unpacked",
    "words_text",
]
