"""Published rates: their files are whole, and each name is one of longca's."""

import tomllib
from pathlib import Path

import pytest

from longca.core.errors import UserError
from longca.core.hardware import load_hardware
from longca.core.plugin import Registry
from longca.lab.published.load import DATA, load_published, load_sources
from tests.helpers.support import ROOT

RATES = load_published()
SOURCE = """
title: Somebody
url: https://example.org
citation: Somebody
hardware: NVIDIA H200
how: exact
plus_minus: 1
counterparts: {fast: {kernel: fa3}, other: null}
tables:
  - {mask: full, direction: fwd, seqlen: [1K, 2K], rates: {fast: %s, other: [1, 2]}}
"""


def _rate(**wanted: object) -> float:
    actual = [rate for rate in RATES if all(getattr(rate, name) == value for name, value in wanted.items())]
    assert len(actual) == 1, actual
    return actual[0].tflops_per_device


def test_names_are_plugins_and_gpus_have_peaks():
    hardware = load_hardware()
    kernels, strategies, masks = (set(Registry(kind).names()) for kind in ("kernel", "strategy", "mask"))
    assert {rate.kernel for rate in RATES} <= kernels
    assert {rate.strategy for rate in RATES if rate.strategy} <= strategies
    assert {rate.mask for rate in RATES} <= masks
    for rate in RATES:
        assert set(rate.mask_params) <= set(Registry("mask").load(rate.mask).Params.model_fields)
        peak = hardware.peak_tflops(rate.hardware, rate.dtype)
        assert peak and 0 < rate.tflops_per_device < peak
        assert rate.how and rate.url and (rate.kind == "cp") == (rate.strategy is not None)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"source": "cudnn_h200", "mask": "causal", "seqlen": 32768, "direction": "fwd"}, 688),
        ({"source": "cudnn_h200", "mask": "full", "seqlen": 8192, "direction": "bwd"}, 594),
        (
            {
                "source": "magiattention_h100",
                "method": "fa3",
                "mask": "causal_document",
                "seqlen": 32768,
                "direction": "bwd",
            },
            426,
        ),
        (
            {
                "source": "magiattention_h100",
                "method": "usp+fa3",
                "mask": "full_document",
                "world": 64,
                "direction": "fwd",
            },
            291,
        ),
        (
            {
                "source": "magiattention_h100",
                "method": "ulysses+fa3",
                "mask": "full",
                "seqlen": 131072,
                "direction": "bwd",
            },
            573,
        ),
        ({"source": "magiattention_h100_2025", "method": "flex", "seqlen": 49152, "direction": "fwd"}, 332.5),
        ({"source": "longca_bench", "method": "flashinfer", "num_kv_heads": 64}, 414.93),
    ],
    ids=str,
)
def test_numbers_of_the_sources(wanted, expected):
    assert _rate(**wanted) == expected


def test_what_a_reader_must_know_is_noted():
    for rate in RATES:
        assert "document" not in rate.mask or "sampler" in rate.note or rate.source == "longca_bench"
        assert rate.kernel != "flashmask" or "Paddle" in rate.note
        assert rate.kernel != "sdpa" or "torch chose the backend" in rate.note
        assert rate.mask != "causal_sliding_window" or rate.mask_params == {"window": 1024}
        assert rate.seqlen or "not told" in rate.note or "8K to 48K" in rate.note


def test_incomplete_readings_and_methods_without_a_counterpart_are_left_out(tmp_path: Path):
    path = tmp_path / "one.yaml"
    path.write_text(SOURCE % "[100, 200]")
    actual = [(rate.kernel, rate.seqlen, rate.tflops_per_device) for rate in load_published(tmp_path)]
    assert actual == [("fa3", 1024, 100), ("fa3", 2048, 200)]
    path.write_text(SOURCE % "[100]")
    assert load_published(tmp_path) == []
    incomplete = load_sources()["magiattention_h100"].tables
    assert any(table.rates["flex"] == () for table in incomplete if "flex" in table.rates)
    assert not any(rate.method == "flex" and rate.mask == "causal_sliding_window" for rate in RATES)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("other: null", "another: null"), "no counterpart is named for other"),
        (("seqlen: [1K, 2K]", "seqlen: [1K], world: [2]"), "one axis"),
        (("plus_minus: 1", "plus_minus: -1"), "plus_minus"),
        (("hardware:", "hardwere:"), "'hardware'"),
    ],
)
def test_a_file_that_cannot_be(tmp_path: Path, change: tuple[str, str], expected: str):
    (tmp_path / "one.yaml").write_text((SOURCE % "[1, 2]").replace(*change))
    with pytest.raises(UserError, match=expected):
        load_published(tmp_path)


def test_a_wheel_holds_all_files():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"][
        "package-data"
    ]["longca"]
    packed = {path for pattern in patterns for path in (ROOT / "longca").glob(pattern)}
    for folder in (
        DATA,
        ROOT / "longca/lab/compare/templates",
        ROOT / "longca/lab/report/templates",
        ROOT / "longca/lab/report/static",
    ):
        assert {path for path in folder.iterdir() if path.is_file()} <= packed
