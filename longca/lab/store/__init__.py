"""Records on disk, and the tables derived from them. Never imports torch."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.lab.store import columns, environments, export, frame, index, load, table, text
    from longca.lab.store.beside.kept import kept_answer
    from longca.lab.store.beside.made import PAGE, PAPER, note_made, records_digest
    from longca.lab.store.beside.playoffs import PlayoffStore
    from longca.lab.store.beside.repeats import RepeatStore
    from longca.lab.store.cells import CellStore, UnusableFile
    from longca.lab.store.checks.known import Known, known_cells
    from longca.lab.store.checks.record import digest_of
    from longca.lab.store.download import (
        PARTIAL,
        RefusedTransfer,
        TransferError,
        WrongDigest,
        fetch_file,
        transfer,
    )
    from longca.lab.store.files import EXPORTED, file_sha256, replace_file, require_folder
    from longca.lab.store.lock import lock_folder
    from longca.lab.store.rows.load import LoadedRows, load_rows
    from longca.lab.store.rows.record_table import RecordTable, TensorError, environments_of
    from longca.lab.store.view import View
else:
    __getattr__, __dir__ = face(__name__)

__all__ = [
    "EXPORTED",
    "PAGE",
    "PAPER",
    "PARTIAL",
    "CellStore",
    "Known",
    "LoadedRows",
    "PlayoffStore",
    "RecordTable",
    "RefusedTransfer",
    "RepeatStore",
    "TensorError",
    "TransferError",
    "UnusableFile",
    "View",
    "WrongDigest",
    "columns",
    "digest_of",
    "environments",
    "environments_of",
    "export",
    "fetch_file",
    "file_sha256",
    "frame",
    "index",
    "kept_answer",
    "known_cells",
    "load",
    "load_rows",
    "lock_folder",
    "note_made",
    "records_digest",
    "replace_file",
    "require_folder",
    "table",
    "text",
    "transfer",
]
