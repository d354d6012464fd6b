"""Texts of records in blocks."""

import random

import pytest

from longca.lab.store.rows import texts
from longca.lab.store.rows.texts import Texts


def full_disk(*_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("has_room", [True, False])
def test_texts_are_gathered_in_any_order(has_room: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_room:
        monkeypatch.setattr(texts, "TemporaryFile", full_disk)
    lines = [bytes([65 + number % 26]) * (number % 50) for number in range(1000)]
    numbers = random.Random(0).sample(range(1000), 900)
    gathered = Texts.of(lines).gathered(numbers)
    assert len(gathered) == 900 and list(gathered.each(range(900))) == [lines[number] for number in numbers]
