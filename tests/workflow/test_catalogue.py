"""The workflow is as the catalogue of Snakemake's workflows wants one for standardized usage."""

import yaml

from tests.helpers.support import ROOT

DEPLOYMENT = {"conda", "apptainer", "apptainer+conda", "report"}


def test_the_repository_has_what_the_catalogue_asks_for():
    readme = (ROOT / "README.md").read_text(encoding="utf-8").lower()
    assert "snakemake" in readme and "workflow" in readme
    assert (ROOT / "workflow/Snakefile").is_file() and (ROOT / "config/README.md").is_file()
    assert list((ROOT / "workflow/rules").glob("*.smk"))


def test_the_entry_has_the_catalogues_keys():
    usage = yaml.safe_load((ROOT / ".snakemake-workflow-catalog.yml").read_text(encoding="utf-8"))["usage"]
    assert set(usage) == {"mandatory-flags", "software-stack-deployment"}
    assert set(usage["mandatory-flags"]) == {"desc", "flags"} and isinstance(
        usage["mandatory-flags"]["flags"], str
    )
    assert set(usage["software-stack-deployment"]) == DEPLOYMENT
    assert all(isinstance(value, bool) for value in usage["software-stack-deployment"].values())
    assert usage["software-stack-deployment"]["report"], "outputs are marked for `snakemake --report`"


def test_marks_of_the_report_have_their_captions():
    rules = (ROOT / "workflow/rules/report.smk").read_text(encoding="utf-8")
    captions = [line.split('"')[1] for line in rules.splitlines() if "caption=" in line]
    assert len(captions) == rules.count("report(") == 3
    assert all((ROOT / "workflow/rules" / caption).is_file() for caption in captions)
