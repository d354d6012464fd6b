"""The figure of predictions' errors in narrow windows."""

import itertools
import re
import xml.etree.ElementTree as ElementTree


def test_marks_of_an_axis_have_room_in_narrow_windows(drawing):
    narrow = drawing("predicted_errors").narrow_svg
    texts = [
        text for text in ElementTree.fromstring(narrow).iter("text") if re.match(r"[+-]?\d+( %)?$", text.text)
    ]
    places = sorted(float(text.get("x")) for text in texts)
    assert len(places) > 2 and all(b - a >= 24 for a, b in itertools.pairwise(places))
