"""A kernel in a file of its own: its layout and its backward, and errors told by line."""

import pytest
import torch

from longca.kernels.contract import Problem
from longca.kernels.own_file import LAYOUTS, OwnFilePrepared
from longca.masks import build_mask
from tests.helpers.bench.own_files import CPU, outcome, write

pytestmark = pytest.mark.long


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_a_right_file_is_right(tmp_path, direction):
    assert outcome(write(tmp_path), direction).status == "ok"
    with_lse = write(tmp_path, "with_lse", result="scores.softmax(-1) @ v, scores.logsumexp(-1)")
    assert outcome(with_lse, direction).status == "ok"
    wrong_lse = write(tmp_path, "wrong_lse", result="scores.softmax(-1) @ v, scores.logsumexp(-1) + 1")
    assert "lse is off" in outcome(wrong_lse, direction).reason


def test_a_backward_of_its_own_is_called_and_checked(tmp_path):
    own = """
def backward(dout, q, k, v, out, lse, mask):
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        return [{factor} * x for x in torch.autograd.grad(forward(*leaves, mask), leaves, dout)]
"""
    assert outcome(write(tmp_path, "own_bwd", more=own.format(factor=1)), "bwd").status == "ok"
    assert "dq is off" in outcome(write(tmp_path, "double", more=own.format(factor=2)), "bwd").reason
    lost = outcome(write(tmp_path, "no_grad", result="(scores.softmax(-1) @ v).detach()"), "bwd")
    assert lost.type == "ResultError" and "define backward(dout, q, k, v, out, lse, mask)" in lost.message


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensors_come_in_the_layout_that_the_file_names(tmp_path, layout):
    path = tmp_path / f"layout_{layout.lower()}.py"
    path.write_text(f"LAYOUT = '{layout}'\ndef forward(q, k, v, mask):\n    return q\n")
    problem = Problem(build_mask("causal", seqlen=6), 4, 2, 8, torch.float32, CPU, needs_backward=False)
    prepared = OwnFilePrepared(problem, path)
    x_THD = torch.randn(6, 4, 8)
    x = prepared.to_layout(x_THD)
    sizes = {"B": 1, "H": 4, "T": 6, "D": 8}
    assert x.shape == tuple(sizes[axis] for axis in layout) and x.is_contiguous()
    assert torch.equal(prepared.from_layout(prepared.forward(x, x, x).out), x_THD)
    lse_HT = torch.randn(4, 6)
    assert torch.equal(prepared.lse_from_layout(lse_HT[None]), lse_HT.T)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"first": "raise ValueError('no luck')"}, "line 7, in forward: raise ValueError('no luck')"),
        ({"more": "import nosuch_module"}, "line 2, in <module>: import nosuch_module"),
        ({"result": "scores"}, "must be a float32 tensor of (1, 4, 64, 8)"),
        ({"result": "(scores.softmax(-1) @ v).double()"}, "out that is a float64 tensor of (1, 4, 64, 8)"),
        ({"result": "None"}, "out that is a NoneType"),
        ({"more": "LAYOUT = 'XYZ'"}, "BHTD, BTHD, HTD, THD"),
    ],
)
def test_errors_name_the_line_or_what_is_expected(tmp_path, changes, said):
    actual = outcome(write(tmp_path, f"bad_{abs(hash(said))}", **changes))
    assert actual.status == "error" and said in actual.message + actual.log


@pytest.mark.parametrize("change", ["k.zero_()", "k.data.zero_()", "k.numpy()[:] = 0"])
def test_a_kernel_that_changes_its_inputs_is_wrong_however_it_does_it(tmp_path, change):
    actual = outcome(write(tmp_path, f"changes_{abs(hash(change))}", first=change))
    assert (
        actual.status == "incorrect"
        and "it changes its input k, which the next call would see" in actual.reason
    )
