"""Folders of `reports/`: one for each model of GPU, found by scan, never mixed."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from longca.core.errors import UserError
from longca.lab.advice import advise
from longca.lab.claims.by_gpu import judged
from longca.lab.claims.contract import all_claims
from longca.lab.store import load as store
from longca.lab.store.export import export
from longca.lab.store.frame import load
from longca.lab.store.load import committed
from longca.lab.store.table import derived
from longca.lab.store.text import distinct_names, folder_of_gpu
from tests.helpers.records import gpu_study

pytestmark = pytest.mark.long

MODELS = ("NVIDIA H100 80GB HBM3", "NVIDIA L40S")


def _devices(path: Path) -> set[str]:
    """The GPUs of a table."""
    table = pq.read_table(path, columns=["device", "device_type"])
    return {device for device, kind in zip(*table.to_pydict().values(), strict=True) if kind == "cuda"}


def test_each_committed_folder_has_one_model_and_its_name():
    for path in committed():
        assert {folder_of_gpu(device) for device in _devices(path)} == {path.parent.name}, path


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with records of one study on two models of GPU."""
    for gpu in MODELS:
        [path, *_] = export(gpu_study(gpu)[::3], tmp_path / folder_of_gpu(gpu))
        path.rename(path.with_name("h100-dense.parquet"))
    monkeypatch.setattr(store, "COMMITTED", tmp_path)
    return tmp_path


def test_a_contributed_folder_is_found_and_ranked_by_itself(own: Path, longca):
    assert [path.parent.name for path in committed()] == ["h100", "l40s"]
    asked = ("choose", "causal", "-s", "8K", "--heads", "64:8", "-d", "fwd", "--json")
    both = json.loads(longca(*asked).stdout)["rankings"]
    assert [ranking["devices"] for ranking in both] == [[gpu] for gpu in MODELS]
    first = json.loads(longca(*asked, "--gpu", "l40s").stdout)["rankings"]
    assert [ranking["devices"] for ranking in first] == [["NVIDIA L40S"]]


def test_a_folder_of_tables_is_a_source(own: Path, longca):
    asked = ("choose", "causal", "-s", "8K", "--heads", "64:8", "-d", "fwd", "--json")
    [ranking] = json.loads(longca(*asked[:2], str(own / "l40s"), *asked[2:]).stdout)["rankings"]
    assert ranking["devices"] == ["NVIDIA L40S"]
    assert set(load(own / "l40s").device) == {"NVIDIA L40S"}
    assert set(load(own / "l40s", own / "h100").device) == {*MODELS}


def test_a_model_without_peaks_is_not_predicted_and_the_message_names_its_records(own: Path):
    (own / "l40s").rename(own / "z900-80gb")
    with pytest.raises(UserError, match="records in reports/z900-80gb, but no peaks"):
        advise("causal", gpu="z900")


def test_claims_are_judged_for_each_model():
    table = derived([*gpu_study(MODELS[0]), *gpu_study(MODELS[1])])
    claims = [claim for claim in all_claims() if claim.name == "masks_decide"]
    [verdicts] = judged(claims, table)
    assert {verdicts.repaired.gpu, *(verdict.gpu for verdict in verdicts.repaired.elsewhere)} == {
        "H100",
        "L40S",
    }


def test_models_with_one_short_name_stay_two():
    names = distinct_names(["NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM2e", "NVIDIA H200"])
    assert len(set(names.values())) == 3 and names["NVIDIA H200"] == "H200"


def test_advice_names_the_records_of_a_gpu_without_models(own: Path, longca):
    """The peak rates of an L40S are known, those of an X900 are not: each answer says what can be done."""
    known = longca("advise", "-m", "causal", "-s", "8K", "-w", "1", "--gpu", "l40s", here=True)
    assert "its records in reports/l40s (--records does so)" in " ".join(known.stdout.split())
    [path, *_] = export(gpu_study("NVIDIA X900")[::3], own / "x900")
    path.rename(path.with_name("h100-dense.parquet"))
    unknown = longca("advise", "-m", "causal", "-s", "8K", "-w", "1", "--gpu", "x900", here=True)
    assert unknown.returncode == 2 and "records in reports/x900" in unknown.stderr
    assert "longca choose MASK --gpu x900" in unknown.stderr
