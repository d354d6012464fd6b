"""Kernels in files of their own, and cells to measure them by."""

import torch

from longca.lab.bench.measure.kernel import measure_kernel
from longca.lab.bench.run.own_file import _as_plugin
from longca.lab.studies.cell import Cell
from longca.lab.studies.grid import Measure

CPU = torch.device("cpu")
MEASURE = Measure.fixed(warmup=0, repeats=3, timeout_s=30)


FILE = """import torch
{more}
def prepare(mask, device):
    return torch.from_numpy(mask.dense()).to(device)

def forward(q, k, v, mask):
    {first}
    num_copies = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(num_copies, 1) for x in (k, v))
    scores = (q @ k.mT) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(~mask, float("-inf"))
    return {result}
"""


RIGHT = {"more": "", "first": "", "result": "scores.softmax(-1) @ v"}


def write(folder, name="mine", **changes):
    path = folder / f"{name}.py"
    path.write_text(FILE.format(**RIGHT | changes))
    return path


def cell(kernel, direction="fwd", **fields):
    return Cell(
        **{
            "kind": "kernel",
            "kernel": kernel,
            "mask": "causal",
            "seqlen": 64,
            "num_q_heads": 4,
            "num_kv_heads": 2,
            "head_dim": 8,
            "dtype": "fp32",
            "direction": direction,
            **fields,
        }
    )


def outcome(path, direction="fwd"):
    with _as_plugin(path) as name:
        return measure_kernel(cell(name, direction), MEASURE, CPU).outcome
