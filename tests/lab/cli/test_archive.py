"""`longca archive` and `longca verify` as a user calls them, and the workflow in an unpacked bundle."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from longca.lab.archive.manifest import sha256
from longca.lab.store.cells import CellStore
from longca.lab.studies.study import load_study
from tests.helpers.records import record

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("profile", "told_in"),
    [("workflow/profiles/local", "text"), pytest.param("slurm", "json", marks=pytest.mark.slow)],
)
def test_archive_verify_and_repeat(longca, tiny, tmp_path, profile, told_in, with_apptainer):
    CellStore(tmp_path / "results" / "tiny").write(record(load_study(str(tiny)).cells()[0], study="tiny"))
    done = longca("archive", tiny)
    assert done.returncode == 0 and "1 record of 9 cells" in done.stdout, done.stdout + done.stderr
    bundle = Path(done.stdout.splitlines()[-1])
    assert bundle == tmp_path / "results" / "tiny.tar.gz"
    if told_in == "json":
        before = bundle.read_bytes()
        content = json.loads(longca("archive", tiny, "--json").stdout)
        assert (
            bundle.read_bytes() == before
            and content["num_records"] == 1
            and content["num_bytes"] == len(before)
        )
    sums = [line for line in done.stdout.splitlines() if " sha256:" in line]
    assert f"bundle sha256:{sha256(bundle.read_bytes())}" in sums
    done = longca("verify", bundle)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if " sha256:" in line] == sums
    assert "byte for byte" in done.stdout
    subprocess.run(["tar", "-xzf", bundle, "-C", tmp_path], check=True)
    folder = tmp_path / "longca-tiny"
    env = {name: value for name, value in os.environ.items() if name != "LONGCA_RESULTS"} | {
        "PATH": with_apptainer
    }
    dry = subprocess.run(
        [sys.executable, "-m", "snakemake", "--profile", profile, "--dry-run"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=env,
    )
    assert dry.returncode == 0, dry.stdout + dry.stderr
    assert "\ncp " in dry.stdout and "\nreport " in dry.stdout
    (folder / "measured" / "records.parquet").write_bytes(b"another")  # of which no page need be made
    changed = longca("verify", folder, *(["--json"] if told_in == "json" else []))
    assert changed.returncode == 1
    if told_in == "text":
        assert "files: measured/records.parquet was changed" in changed.stdout
    else:
        assert {check["name"]: check["passed"] for check in json.loads(changed.stdout)["checks"]} == {
            "files": False,
            "study": True,
            "records": False,
            "page": False,
        }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["archive", "quik"], ["Unknown study 'quik'", "'quick'"]),
        (["archive", "quick"], ["no records"]),
        (["verify", "README.md"], ["'README.md' cannot be unpacked"]),
        (["verify", "docs"], ["'docs' is not a bundle", "manifest-sha256.txt"]),
    ],
)
def test_what_cannot_be(longca, arguments, expected):
    done = longca(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    for part in expected:
        assert part in done.stderr
