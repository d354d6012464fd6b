"""The store of play-offs: one file a case, so that a play-off is there with all its players or not at all."""

from __future__ import annotations

from collections.abc import Sequence

from longca.core.record import Record
from longca.store.beside.files import RecordFiles


class PlayoffStore(RecordFiles):
    """The play-offs of one study's results: `<folder>/playoffs/<case>.jsonl`, a line for each player, the fastest of before first.

    A case is played off again in place of its last play-off.
    """

    name = "playoffs"

    def damage(self, records: Sequence[Record]) -> str:
        is_one = len({record.playoff for record in records}) == 1 and records[0].playoff is not None
        return "" if is_one else "its records are not those of one play-off"
