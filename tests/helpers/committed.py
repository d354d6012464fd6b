"""Some of the records that come with the project. To read all of them takes seconds."""

from typing import Any

import pyarrow.parquet as pq

from longca.lab.store.decode import Decoder
from longca.lab.store.load import committed as files
from longca.lab.studies.record import Record


def committed(study: str, *, step: int = 1, **columns: Any) -> list[Record]:
    """Each `step`-th record of that study, of those with one of the values of each column."""
    filters = [(name, "in", list(values)) for name, values in columns.items()] or None
    texts = pq.read_table(files(study)[0], columns=["record"], filters=filters)["record"].to_pylist()
    decoder = Decoder()
    return [decoder.decode(text.encode()) for text in texts[::step]]
