"""The crate of a bundle, by roc-validator, the validator of the authors of the profiles."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from longca.lab.archive.bundle import Bundle
from longca.lab.archive.crate import NAME, PROFILES
from longca.lab.archive.packing import opened
from tests.helpers.support import cannot
from tests.lab.archive import validate_crate

VALIDATOR = "roc-validator==0.13.0"  # the newest of 2026-11: its checks change with each version
NO_ADDRESS = {
    "ro-crate-1.1_31.2",
    "process-run-crate-0.5_3.2",
}  # CITATION.cff has no address of the project yet
NO_REGISTRY = {"process-run-crate-0.5_13.2"}  # records name images by digest alone
OF_VALIDATOR = {
    "process-run-crate-0.5_5.1",
    "ro-crate-1.1_3.2",
}  # names classes of its own; wants the real contexts
"""recommendations that are not followed"""


@pytest.fixture(scope="module")
def validator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the validator and its packages."""
    folder = tmp_path_factory.mktemp("validator")
    command = [sys.executable, "-m", "pip", "install", "-q", "--target", folder, VALIDATOR]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not (folder / "rocrate_validator").is_dir():
        cannot("index", f"pip cannot install {VALIDATOR}: {done.stderr.strip()[-200:]}")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["workflow-run-crate", "workflow-ro-crate"])
def test_the_validator_passes_a_bundle(bundle: Bundle, validator: Path, profile: str):
    with opened(bundle.path) as (folder, _):
        graph = json.loads((folder / NAME).read_text())["@graph"]
        command = [sys.executable, validate_crate.__file__, folder, profile]
        env = {**os.environ, "PYTHONPATH": str(validator)}
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    terms = {term for context in validate_crate.CONTEXTS.values() for term in context}
    assert {key for entity in graph for key in entity if not key.startswith("@")} <= terms
    findings = json.loads(done.stdout.splitlines()[-1])
    assert findings["REQUIRED"] == []
    assert {check for check, _ in findings["RECOMMENDED"]} <= NO_ADDRESS | NO_REGISTRY | OF_VALIDATOR


def test_the_profiles_of_the_crate_are_named_with_their_versions(bundle: Bundle):
    with opened(bundle.path) as (folder, _):
        graph = {entity["@id"]: entity for entity in json.loads((folder / NAME).read_text())["@graph"]}
    assert {entry["@id"] for entry in graph["./"]["conformsTo"]} == set(PROFILES)
    assert all(graph[profile]["version"] in profile for profile in PROFILES)
