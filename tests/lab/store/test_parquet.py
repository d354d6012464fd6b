"""A file of records that cannot be read is said to be so for its reason."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longca.lab.store.parquet import BadTable, read_columns, read_texts


def test_a_host_without_memory_damages_no_file(tmp_path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "records.parquet"
    pq.write_table(pa.table({"seed": [1]}), path)

    def fail(*_: object, **__: object) -> None:
        raise pa.ArrowMemoryError("malloc of size 4194304 failed")

    monkeypatch.setattr(pq.ParquetFile, "read", fail)
    with pytest.raises(BadTable, match=r"^cannot be read \(there is not enough memory\)$"):
        read_columns(path, {"seed": "int"})


def test_a_file_that_is_no_table_is_damaged(tmp_path):
    path = tmp_path / "records.parquet"
    path.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(BadTable, match="is damaged or no table of records"):
        read_columns(path, {"seed": "int"})


@pytest.mark.parametrize("values", [[1], [b"\xff"], [["text"]], [1.5], [{"a": 1}], [True]])
def test_records_of_another_type_are_no_texts(tmp_path, values):
    path = tmp_path / "records.parquet"
    pq.write_table(pa.table({"record": pa.array(values)}), path)
    with pytest.raises(BadTable, match=r"column 'record' is of another type"):
        list(read_texts(path, "record"))
