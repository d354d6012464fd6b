"""Tests of the trial of Hopper kernels, with fake processes: one that ends, hangs or is wrong costs no other
result."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.band import sm90_try as trial
from longca.ops.band import api as band_attention
from longca.ops.band.config import BandKernel
from longca.ops.band.tables.dq_order import heads_per_item_of

PRETEND = """
import json, sys, time
action, variant, first = sys.argv[1], sys.argv[2], int(sys.argv[3])
if action == "--time":
    print(json.dumps({"kind": "time", "what": "causal 32768 64:8", "tflops": 500.0, "ms": 1.0}), flush=True)
    sys.exit("no memory" if variant == "ends late" else 0)
for place in range(first, 3):
    print(json.dumps({"kind": "start", "place": place, "what": f"case {place}"}), flush=True)
    if place == 1 and variant == "hangs":
        time.sleep(60)
    if place == 1 and variant == "ends":
        sys.exit("illegal instruction")
    print(json.dumps({"kind": "check", "what": f"case {place}", "errors": [1.0 if variant == "wrong" else 1e-3], "lse": 0.0}), flush=True)
"""


def test_each_result_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(action: str, variant: str, first: int) -> list[str]:
        return [sys.executable, "-c", PRETEND, action, variant, str(first)]

    monkeypatch.setattr(trial, "command", command)
    monkeypatch.setattr(trial, "cases", lambda variant: [None] * 3)
    monkeypatch.setattr(trial, "CASE_TIMEOUT_S", 5)
    variants = ["right", "hangs", "ends", "wrong", "ends late"]
    trial.main(tmp_path / "new" / "out.json", variants)
    found, said = json.loads((tmp_path / "new" / "out.json").read_text()), capsys.readouterr().out
    assert list(found) == variants
    assert {name: [row["kind"] for row in rows] for name, rows in found.items()} == {
        **{name: ["check"] * 3 + ["time"] for name in ("right", "wrong", "ends late")},
        "hangs": ["check"] * 3,
        "ends": ["check"] * 3,
    }
    assert [row["errors"][0] for row in found["hangs"]] == [1e-3, float("inf"), 1e-3]
    assert "hangs: HUNG, stopped in case 1" in said and "ends: exit 1 in case 1\nillegal instruction" in said
    assert "times of ends late: exit 1\nno memory" in said and said.count("WRONG") == 5


@pytest.mark.parametrize(
    "variant", [*trial.BACKWARD, *trial.FORWARD, "bwd from first k1 r2 h2 s1", "bwd two dq k2"]
)
def test_plans_of_every_variant(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every case that is checked or timed, at an eighth of the length: what they need to be made is
    there."""
    made = []

    def remember(*args: Any) -> tuple[torch.Tensor, ...]:
        made.append(next(arg for arg in args if isinstance(arg, band_attention.BandPlan)))
        return ()

    monkeypatch.setattr(band_attention, "band_forward", remember)
    monkeypatch.setattr(band_attention, "band_backward", remember)
    timed = [
        (trial.mask_of(name, seqlen // 8, kv_heads), heads, kv_heads, 128)
        for name, seqlen, heads, kv_heads in trial.TIMES
    ]
    for mask, heads, kv_heads, head_dim in [*trial.cases(variant), *timed]:
        q, k = torch.empty(mask.seqlen_q, heads, head_dim), torch.empty(mask.seqlen_k, kv_heads, head_dim)
        if variant in trial.FORWARD:
            trial.forward(variant, q, k, k, mask)()
        else:
            trial.backward(variant, q, k, k, q, q[..., 0], q, mask)()
        way, _ = trial.split_variant(variant)
        in_one = way in trial.FUSED
        assert (BandKernel.DQ in made[-1].kernels) is not (in_one or variant in trial.FORWARD)
        assert not in_one or (made[-1].kernels[BandKernel.DKDV][0].wait_ranges.shape[1] > 0) is bool(
            trial.FUSED[way]
        )
        tiles = made[-1].kernels.get(BandKernel.DKDV, (None, None))[1]
        if variant == "bwd two dq k2":
            assert tiles.kv_heads_per_section == math.gcd(2, kv_heads)
        if variant == "bwd from first k1 r2 h2 s1":
            ratio = heads // kv_heads
            per_item = math.gcd(2, ratio)
            assert (tiles.kv_heads_per_section, tiles.heads_per_item, tiles.stores_first) == (
                1,
                per_item,
                True,
            )
            assert tiles.rounds_per_section == math.gcd(2, ratio // per_item)
        elif in_one:
            assert tiles.heads_per_item == math.gcd(
                heads_per_item_of(mask, trial.FUSED[way], heads, 128), heads // kv_heads
            )


def test_names_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert trial.parse([]).variants == [*trial.BACKWARD, *trial.FORWARD] and set(trial.FUSED) < set(
        trial.BACKWARD
    )
    assert trial.parse(["out.json", "bwd from last k2", "fwd"]).variants == ["bwd from last k2", "fwd"]
    with pytest.raises(SystemExit, match="2"):
        trial.parse(["out.json", "bwd up"])
    with pytest.raises(SystemExit, match="2"):
        trial.parse(["out.json", "bwd portable k2"])
    assert f"bwd up: not among {trial.BACKWARD[0]}, " in capsys.readouterr().err
