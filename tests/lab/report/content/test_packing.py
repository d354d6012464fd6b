"""Data on a page stay data."""

import json

from longca.lab.report.content.packing import compressed, page_data, script_json
from longca.lab.report.rows import rows_json
from longca.lab.report.series import labelled
from longca.lab.store.table import derived, in_order
from tests.helpers.records import quick_study, record


def test_data_cannot_end_their_script():
    entry = record(quick_study()[0].cell, notes=("</script><script>alert(1)</script>",))
    text = rows_json(in_order([entry]), labelled(derived([entry])))
    page = f'<script type="application/zlib" id="data">{compressed(text)}</script><b>'
    assert page.count("</script>") == 1
    assert page_data(page, "data")["notes"] == {"every": "</script><script>alert(1)</script>"}


def test_data_hold_no_control_characters():
    """A script puts texts on the page, where they would turn the direction of what follows."""
    hostile = "\x1b]0;x\x07 \u202e\x9b2J"
    text = script_json({hostile: [hostile, "kept\n\tas it is", 1.5, None, "\\u00e9"]})
    assert text.isprintable()
    safe = r"\x1b]0;x\x07 \u202e\x9b2J"
    assert json.loads(text) == {safe: [safe, "kept\n\tas it is", 1.5, None, "\\u00e9"]}
