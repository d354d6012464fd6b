"""Small cells, and kernels that a test writes into a folder of plug-ins."""

from pathlib import Path

import pytest

from longca.core.plugin import Registry
from longca.lab.studies.cell import Cell


def small_cell(
    kernel: str = "naive", mask: str = "causal_document", direction: str = "fwd", **changes: object
) -> Cell:
    pattern = Registry("mask").load(mask)
    fields = {
        "kind": "kernel",
        "kernel": kernel,
        "mask": mask,
        "mask_params": pattern.resolve({}),
        "seqlen": 128,
        "num_q_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "dtype": "fp32",
        "direction": direction,
        "corpus": "pile" if pattern.uses_documents else None,
    }
    return Cell(**{**fields, **changes})


def write_kernel(name: str, body: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel plug-in `name` whose prepared form is Naive's with `body` as further methods."""
    (folder / "kernels").mkdir(exist_ok=True)
    methods = "\n".join(f"    {line}" for line in body.strip("\n").splitlines())
    (folder / "kernels" / f"{name}.py").write_text(f'''
import torch
from longca.kernels.backends.naive import NaivePrepared
from longca.kernels.contract import Forward, Kernel

class Prepared(NaivePrepared):
{methods}

class Plugin(Kernel):
    label, summary, url = "{name}", "For a test", "https://example.org"

    def supports(self, call, traits, device_type):
        return None

    def prepare(self, problem):
        return Prepared(problem)
''')
    monkeypatch.setenv("LONGCA_PLUGINS", str(folder))
