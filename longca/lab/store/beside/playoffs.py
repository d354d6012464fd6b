"""The store of play-offs: one file for each case, so that a play-off is stored with all its players or not at
all."""

from __future__ import annotations

from collections.abc import Sequence

from longca.lab.store.beside.files import RecordFiles
from longca.lab.studies import Record


class PlayoffStore(RecordFiles):
    """The play-offs of one study's results: `<folder>/playoffs/<case>.jsonl`, one line for each player, the
    previously fastest first.

    A new play-off of a case replaces its last one.
    """

    name = "playoffs"

    def damage(self, records: Sequence[Record]) -> str:
        is_one = len({record.playoff for record in records}) == 1 and records[0].playoff is not None
        return "" if is_one else "its records are not those of one play-off"
