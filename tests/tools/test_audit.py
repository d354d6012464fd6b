"""The audit of pinned packages says how much it has judged; the list of packages."""

import sys
from pathlib import Path

import pytest

from tools import audit, setup


@pytest.mark.parametrize(
    ("vulns", "skipped", "code", "text"),
    [
        ([], None, None, "no known vulnerability in 2 pinned packages"),
        (
            [{"id": "PYSEC-1", "fix_versions": ["2"]}],
            None,
            1,
            "1 of 2 pinned packages have known vulnerabilities",
        ),
        ([], "not on PyPI", 3, "1 of 2 pinned packages were judged, the index does not answer for b 1"),
    ],
)
def test_an_audit_says_how_much_was_judged(capsys, vulns, skipped, code, text):
    other = (
        {"name": "b", "version": "1", "skip_reason": skipped}
        if skipped
        else {"name": "b", "version": "1", "vulns": []}
    )
    actual = {"a 1": {"name": "a", "version": "1", "vulns": vulns}, "b 1": other}
    if code is None:
        audit.judge(actual)
    else:
        with pytest.raises(SystemExit, match=str(code)):
            audit.judge(actual)
    said = capsys.readouterr()
    assert text in said.out + said.err and ("a 1: PYSEC-1, mended in: 2" in said.out) == bool(vulns)


@pytest.mark.slow
def test_the_list_of_packages_names_those_that_measure(monkeypatch, tmp_path):
    """By the real tool, which needs an index to be installed from."""
    import json

    monkeypatch.setattr(setup, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(audit, "SBOM", tmp_path / "sbom.json")
    try:
        audit.sbom()
    except SystemExit as error:
        pytest.skip(f"cyclonedx-bom cannot be installed here (exit code {error.code})")
    content = json.loads((tmp_path / "sbom.json").read_text())
    assert content["bomFormat"] == "CycloneDX"
    assert {"torch", "numpy", "pydantic", "snakemake"} <= {part["name"] for part in content["components"]}
