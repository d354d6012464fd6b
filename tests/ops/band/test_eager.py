"""Calls outside of torch.compile: a call that is known is checked as its first one was."""

import importlib.util

import pytest

from tests.helpers.ops.repeated_calls import SETTINGS, backward, carried, forward, with_totals

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton here")


def test_what_is_known_is_still_checked() -> None:
    """Whatever the checks depend on: addresses, dtypes, devices, lengths, a tensor in a place of its own."""
    from longca.ops.band.api import band_attention
    from tests.helpers.ops.recorded_launches import recorded_launches

    setting = SETTINGS["hopper"]
    with recorded_launches(setting.capability):
        plan = setting.plan()
        x = with_totals(setting, setting.inputs())
        for _ in range(2):
            forward(plan, x)
            backward(plan, x)
            carried(plan, x)
        unaligned = setting.new(len(x["q"]), setting.heads[0], "unaligned")
        for wrong, message in (
            ({"q": unaligned}, "multiple of 16 bytes"),
            ({"q": x["q"][:-1]}, "the mask is over"),
            ({"v": x["v"].half()}, "must all be"),
            ({"k": x["k"].to("meta")}, "on one device"),
            ({"q": x["q"].transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()}, None),
        ):
            for call in (forward, lambda plan, x: band_attention(x["q"], x["k"], x["v"], plan)):
                if message is None:
                    call(plan, x | wrong)
                else:
                    with pytest.raises(ValueError, match=message):
                        call(plan, x | wrong)
        for wrong, message in (
            ({"dout": unaligned}, "multiple of 16 bytes"),
            ({"lse": x["lse"].double()}, "the LSE float32"),
            ({"dout": x["dout"].float()}, "dout must be"),
            ({"out": x["out"][:-1]}, "out and dout of its shape"),
        ):
            with pytest.raises(ValueError, match=message):
                backward(plan, x | wrong)
        with pytest.raises(ValueError, match="initial must be float32"):
            carried(plan, x | {"total": x["total"].half()})
        with pytest.raises(ValueError, match="scale must be positive"):
            forward(plan, x, scale=-1.0)
