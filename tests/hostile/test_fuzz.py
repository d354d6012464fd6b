"""Files that were damaged at random: each is refused in one line, or can be used. Seconds in the default run,
minutes in the other."""

import json
from pathlib import Path

import pytest

from longca.core.hardware import load_hardware
from longca.data.corpus import Corpus
from longca.data.readers import read_documents
from longca.lab.store.cells import CellStore
from longca.lab.store.decode import encode, from_content
from longca.lab.store.export import export
from longca.lab.studies.config import load_config
from longca.lab.studies.record import Record
from longca.lab.studies.site import load_site
from tests.helpers.hostile.fuzzing import fuzz, told, usable
from tests.helpers.hostile.odd import whole_record
from tests.helpers.support import ROOT


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


STUDY = """title: odd
seed: 1
measure: {warmup: 0, warm_seconds: 0, repeats: 3, precision: 0, max_seconds: 1, timeout_s: 60}
grids:
  - {kernel: [naive, sdpa], mask: [full, causal_document], corpus: pile, seqlen: [64, 1K], heads: "2:1", head_dim: 16, dtype: fp32,
     direction: [fwd, bwd]}
  - {kind: cp, strategy: ulysses, kernel: naive, world: 2, mask: {block_sparse_uniform: {block: 64, density: [0.2, 0.5]}}, seqlen: 512,
     heads: "2:1", head_dim: 16, dtype: fp32, direction: fwd}
"""  # noqa: E501


@fuzz(STUDY, 200)
def test_studies(folder: Path, text: bytes):
    (folder / "odd.yaml").write_bytes(text)
    told("plan", folder / "odd.yaml", "--json")


@fuzz(encode(from_content(whole_record("ok", 0))).decode())
def test_records(folder: Path, text: bytes):
    """A checksum finds most damage. So half of them have none, as those that older versions wrote."""
    store = CellStore(folder / "records")
    path = store.path(json.loads(encode(from_content(whole_record("ok", 0))))["cell_id"])
    path.parent.mkdir(parents=True, exist_ok=True)
    for content in (text, text[: text.rfind(b',"checksum"')] + b"}"):
        path.write_bytes(content)
        stored = store.read(path.stem)
        if isinstance(stored, Record):
            export([stored], folder)
        else:
            assert str(stored).isprintable()


@pytest.mark.parametrize("kind", ["jsonl", "txt"])
@fuzz("".join(json.dumps({"text": word * 30, "id": 1}) + "\n\n" for word in ("one", "two", "thré")))
def test_documents(folder: Path, kind: str, text: bytes):
    path = folder / f"documents.{kind}"
    path.write_bytes(text)
    usable(lambda: sum(map(len, read_documents(path))))


@fuzz((ROOT / "longca/data/corpora/prolong512k_long.json").read_text())
def test_corpora(folder: Path, text: bytes):
    path = folder / "odd.json"
    path.write_bytes(text)
    usable(lambda: Corpus.from_file(path).facts())


def config_file(name: str) -> str:
    return (ROOT / "config" / name).read_text()


@fuzz("\n".join(line.partition("#")[0].rstrip() for line in config_file("config.yaml").splitlines()))
def test_settings(folder: Path, text: bytes):
    (folder / "config.yaml").write_bytes(text)
    usable(lambda: load_config(path=folder / "config.yaml", environ={}))


@fuzz("\n".join(line.partition("#")[0].rstrip() for line in config_file("site.example.yaml").splitlines()))
def test_sites(folder: Path, text: bytes):
    (folder / "site.yaml").write_bytes(text)
    usable(lambda: load_site(folder / "site.yaml", {}).measuring_job(2))


@pytest.mark.long
@fuzz(config_file("hardware.yaml").partition("- name: H100 NVL")[0].partition("\n\n")[2])
def test_hardware(folder: Path, text: bytes):
    (folder / "hardware.yaml").write_bytes(text)
    usable(lambda: load_hardware(folder / "hardware.yaml").bandwidth_gb_s("NVIDIA H100 80GB HBM3"))
