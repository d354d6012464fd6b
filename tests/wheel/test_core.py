"""The library needs numpy, pydantic, PyYAML and torch alone: all other installed packages are hidden from
it."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib import metadata

import pytest

from longca.core.errors import LAB, UserError, check_installed, missing_of
from tests.helpers.support import ROOT

pytestmark = pytest.mark.long

HIDE = """
import re, sys
from importlib import metadata

def plain(name):
    return re.sub("[-_.]+", "-", name).lower()

seen, wanted = set(), ["numpy", "pydantic", "PyYAML", "torch"]
while wanted:
    name = plain(wanted.pop())
    if name not in seen:
        seen.add(name)
        try:
            needed = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        wanted += [re.match("[A-Za-z0-9._-]+", line)[0] for line in needed if "extra ==" not in line]

hidden = {top for top, owners in metadata.packages_distributions().items()
          if top != "longca" and not seen & {plain(owner) for owner in owners}}
assert {"typer", "rich", "pandas", "pyarrow", "matplotlib", "snakemake", "psutil", "pynvml"} <= hidden

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)

sys.meta_path.insert(0, Hidden())
"""
LIBRARY = """
import math, torch
import longca
from longca.core.errors import UserError

torch.manual_seed(0)
mask = longca.build_mask("causal_document", seqlen="1K", corpus="pile")
assert mask == longca.Mask.from_documents(mask.documents)
assert "<svg" in mask._repr_html_()
q, k, v = (torch.randn(1024, heads, 32, requires_grad=True) for heads in (4, 2, 2))
out = longca.attention(q, k, v, mask)
out.square().sum().backward()
shown = torch.as_tensor(mask.dense())
repeated = [x.repeat_interleave(2, 1).transpose(0, 1) for x in (k, v)]
expected = torch.nn.functional.scaled_dot_product_attention(q.transpose(0, 1), *repeated, attn_mask=shown).transpose(0, 1)
torch.testing.assert_close(out, expected)
assert all(x.grad.isfinite().all() for x in (q, k, v))

cp = longca.context_parallel(mask, num_q_heads=4, num_kv_heads=2, head_dim=32)
shares = [cp.shard(x.detach()) for x in (q, k, v)]
torch.testing.assert_close(cp.unshard(cp.attention(*shares)), out)

advice = longca.advise(mask, gpus=8, num_q_heads=64, num_kv_heads=8)
assert advice.best.prediction.seconds > 0 and "8 GPUs" in advice.finding
try:
    longca.load()
except UserError as error:
    print(error)
"""  # noqa: E501
COMMAND = """
import runpy
sys.argv = ["longca", "list"]
runpy.run_module("longca", run_name="__main__")
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HIDE + code], capture_output=True, text=True, cwd=ROOT, check=False
    )


def test_masks_attention_context_parallelism_and_advice():
    done = run(LIBRARY)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        'longca.load needs pandas, which is not installed. `pip install "longca[lab]"` brings it\n'
    )


def test_the_command_says_what_it_lacks():
    done = run(COMMAND)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        'longca: The command longca needs typer, which is not installed. `pip install "longca[lab]"` brings '
        "it\n"
    )


def test_other_missing_modules_are_not_the_labs():
    assert missing_of(ModuleNotFoundError(name="somebodys_module"), "It") is None
    assert missing_of(ModuleNotFoundError(name="pandas.gone"), "It") is None, "pandas itself is installed"
    with pytest.raises(UserError, match=r"It needs no_such_module, which is not installed"):
        check_installed("It", "yaml", "no_such_module")


def test_the_extra_brings_the_modules():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert [re.split("[<>=]", line)[0] for line in project["dependencies"]] == ["numpy", "pydantic", "PyYAML"]
    extra = {re.split("[<>=]", line)[0].lower() for line in project["optional-dependencies"]["lab"]}
    owners = metadata.packages_distributions()
    assert {owner.lower() for module in LAB for owner in owners[module]} == extra - {
        "snakemake-executor-plugin-slurm"
    }


def test_records_in_a_wheel_have_the_columns_that_commands_read():
    """Without one, each `longca choose` from a wheel would decode all records: seconds."""
    from longca.lab.claims.contract import all_claims
    from longca.lab.claims.evidence import COLUMNS as EVIDENCE
    from longca.lab.report.choose import COLUMNS as CHOICE
    from longca.lab.store.load import COMMITTED, IDENTITY, committed

    body = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8")).body
    named = {
        statement.targets[0].id: statement.value
        for statement in body
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
    }
    shipped = ast.literal_eval(named["COLUMNS"])
    claimed = {column for claim in all_claims() for column in claim.columns}
    assert {*CHOICE, *EVIDENCE, *IDENTITY, *claimed, "record"} == set(shipped)
    assert set(COMMITTED.parent.glob(ast.literal_eval(named["RECORDS"]))) == set(committed()) != set()
