"""What tests of the workflow share."""

import os

import pytest

APPTAINER = "#!/bin/sh\necho apptainer version 1.4.5\n"


@pytest.fixture(scope="session")
def with_apptainer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH on which dry runs find an Apptainer, on machines without one, too: Snakemake asks for its version alone."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "apptainer").write_text(APPTAINER)
    (folder / "apptainer").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"
