"""The wrong rows of a kernel's results: the first, or the worst where none is far off."""

import math

import pytest

from longca.lab.bench.check.oracle import wrong
from longca.lab.bench.measure.kernel import measure_kernel
from longca.lab.bench.measure.latest import LatestMasks, LatestReferences
from longca.lab.bench.measure.wrong_rows import find_wrong_rows
from longca.lab.bench.run.own_file import _as_plugin
from tests.helpers.bench.own_files import CPU, MEASURE, cell, write

pytestmark = pytest.mark.long


def test_the_first_wrong_row_is_found(tmp_path):
    """A row, a key and a row without keys that are known to be wrong are named."""
    spoilt = write(
        tmp_path, "spoilt", result="(scores.softmax(-1) @ v).index_fill(2, torch.tensor([41, 50]), 0.5)"
    )
    with _as_plugin(spoilt) as name:
        (row,) = find_wrong_rows(cell(name), MEASURE, CPU, LatestMasks(), LatestReferences())
    assert (row.tensor, row.kind, row.row, row.head, row.num_wrong, row.num_checked) == (
        "out",
        "query",
        41,
        0,
        8,
        256,
    )
    assert "first wrong row: query 41 of head 0, off by" in str(row)
    keys = write(
        tmp_path,
        "spoilt_keys",
        more="def backward(dout, q, k, v, out, lse, mask):\n"
        "    leaves = [x.detach().requires_grad_() for x in (q, k, v)]\n    with torch.enable_grad():\n"
        "        dq, dk, dv = torch.autograd.grad(forward(*leaves, mask), leaves, dout)\n    dk[0, 1, 9] = "
        "float('nan')\n"
        "    return dq, dk, dv\n",
    )
    with _as_plugin(keys) as name:
        (row,) = find_wrong_rows(cell(name, "bwd"), MEASURE, CPU, LatestMasks(), LatestReferences())
    assert (row.tensor, row.kind, row.row, row.head, row.error) == (
        "dk",
        "key",
        9,
        1,
        math.inf,
    ) and "KV head 1, not finite" in str(row)


def test_a_small_error_everywhere_has_a_worst_row(tmp_path):
    off = write(tmp_path, "off", result="scores.softmax(-1) @ v * (1 + 6e-6)")
    with _as_plugin(off) as name:
        measured = measure_kernel(cell(name), MEASURE, CPU)
        (row,) = find_wrong_rows(cell(name), MEASURE, CPU, LatestMasks(), LatestReferences())
    assert (
        wrong(measured.accuracy)
        and row.num_wrong == 0
        and "no row is far off; the worst is query" in str(row)
    )
