"""Texts of records are read by the quick way, whatever a record holds."""

import json
from pathlib import Path

from longca.lab.store.decode import CHECKSUM_KEY, Decoder, Unusable, encode
from longca.lab.store.load import load
from longca.lab.studies.record import Record

REPORTS = Path(__file__).parents[3] / "reports"


class _Quick(Decoder):
    """Counts the records that the quick way leaves to the slow one."""

    def __init__(self) -> None:
        super().__init__()
        self.num_left = 0

    def _decode_quickly(self, text: bytes) -> Record | None:
        record = super()._decode_quickly(text)
        self.num_left += record is None
        return record


def test_no_record_of_documents_trees_or_play_offs_takes_the_slow_way() -> None:
    loaded = load(REPORTS / "h200/kv-cache.parquet")
    records = [record for record in loaded.all_records if record.outcome.status == "ok"]
    assert any(record.mask and record.mask.lengths for record in records)
    decoder = _Quick()
    assert [decoder.decode(encode(record)) for record in records] == records
    assert decoder.num_left == 0


def test_a_key_that_is_twice_in_the_lengths_is_damage() -> None:
    loaded = load(REPORTS / "h200/kv-cache.parquet")
    record = next(record for record in loaded.records if record.mask and record.mask.lengths)
    text = encode(record)
    twice = text.replace(b'"lengths":{"', b'"lengths":{"documents":{},"', 1)
    assert twice != text
    assert CHECKSUM_KEY in json.loads(text)
    for damaged in (twice, text.replace(b'"count":', b'"count":1,"count":', 1)):
        try:
            Decoder().decode(damaged)
        except Unusable:
            continue
        raise AssertionError(damaged)
