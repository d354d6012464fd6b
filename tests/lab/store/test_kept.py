"""Answers that are kept are those of what there is now, and damage of a record is still seen."""

import json
from pathlib import Path

import pytest

from longca.lab.store import index
from longca.lab.store.beside.kept import kept_answer
from longca.lab.store.cells import CellStore
from longca.lab.studies.cell import Cell
from tests.helpers.records import record

STUDY = """title: kept
grids: [{kernel: naive, mask: causal, seqlen: [64, 128, 256], heads: '2:1', head_dim: 16, dtype: fp32, direction: fwd}]
"""  # noqa: E501


def test_it_is_made_again_where_a_cause_or_the_file_has_changed(tmp_path: Path):
    made: list[int] = []

    def answer(*causes: str) -> int:
        return kept_answer(tmp_path / "kept.json", causes, lambda: made.append(1) or len(made))

    assert [answer("a", "b"), answer("a", "b"), answer("ab", ""), answer("a", "b")] == [1, 1, 2, 3]
    for damage in (
        "",
        "{",
        "[]",
        '{"follows_from": 1}',
        (tmp_path / "kept.json").read_text().replace('"answer": 3', '"answer": 4'),
    ):
        (tmp_path / "kept.json").write_text(damage)
        before = len(made)
        assert answer("a", "b") == before + 1
    assert kept_answer(tmp_path / "none" / "kept.json", ("a",), lambda: [1]) == [1], "no access, no file"
    assert (
        kept_answer(tmp_path / "other.json", ("a",), lambda: None) is None
        and not (tmp_path / "other.json").exists()
    )


def test_status_sees_each_change_and_each_damage(longca, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(index, "FEWEST", 1)
    study = tmp_path / "kept.yaml"
    study.write_text(STUDY)
    store = CellStore(tmp_path / "kept")
    cells = [
        Cell(kind="kernel", kernel="naive", mask="causal", seqlen=seqlen, num_q_heads=2, num_kv_heads=1, head_dim=16,  # noqa: E501
             dtype="fp32", direction="fwd")
        for seqlen in (64, 128, 256)
    ]  # fmt: skip

    def counts() -> tuple[dict[str, int], int]:
        data = json.loads(longca("status", study, "--results", tmp_path, "--json").stdout)
        return data["methods"]["naive"], len(data["problems"])

    for cell in cells[:2]:
        store.write(record(cell))
    assert counts() == counts() == ({"ok": 2, "left": 1}, 0)
    kept = store.cells / ".status.json"
    assert kept.exists()
    store.write(record(cells[2]))
    assert counts() == counts() == ({"ok": 3}, 0)
    path = store.path(cells[0].cell_id)
    path.write_bytes(path.read_bytes().replace(b'"run_id":"', b'"run_id":"x', 1))
    assert counts() == counts() == ({"ok": 2, "left": 1}, 1), "damaged, and so at each call"
    path.unlink()
    assert counts() == ({"ok": 2, "left": 1}, 0)
    study.write_text(STUDY.replace("[64, 128, 256]", "[128, 256]"))
    assert counts() == ({"ok": 2}, 0)
