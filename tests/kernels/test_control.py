import time

import torch

from longca.core.plugin import Registry
from longca.masks import build_mask
from tests.kernels.cases import Case


def test_lasts_at_least_as_long_as_it_says() -> None:
    control = Registry("kernel").load("control")
    for seqlen in (64, 2048):
        case = Case(build_mask("full", seqlen=seqlen), 1, 1)
        prepared = control.prepare(case.problem("fwd"))
        nothing = torch.empty(0)
        start = time.perf_counter_ns()
        prepared.forward(nothing, nothing, nothing)
        assert (time.perf_counter_ns() - start) / 1e6 >= control.nominal_ms(case.cell("control", "fwd"))


def test_longer_for_more_tokens_within_bounds() -> None:
    control = Registry("kernel").load("control")
    nominal = [control.nominal_ms(Case(build_mask("full", seqlen=seqlen), 1, 1).cell("control", "fwd"))
               for seqlen in (1, 1024, 4096, 1 << 19)]
    assert nominal == [0.5, 1.0, 4.0, 20.0]


def test_one_cell_for_each_length_is_enough() -> None:
    control = Registry("kernel").load("control")
    for name, direction, supported in (("full", "fwd", True), ("causal", "fwd", False), ("full", "bwd", False)):
        case = Case(build_mask(name, seqlen=16), 1, 1)
        reason = control.supports(case.cell("control", direction), case.mask.traits, "cpu")
        assert (reason is None) == supported
