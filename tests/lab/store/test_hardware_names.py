"""Names of GPUs as users write them."""

import pytest

from longca.core.errors import UserError
from longca.core.hardware import load_hardware, matches


@pytest.mark.parametrize(("written", "meant"), [
    ("h100", "H100 SXM"), ("H100", "H100 SXM"), (" h100  sxm ", "H100 SXM"), ("H100-SXM", "H100 SXM"), ("h100sxm", "H100 SXM"),  # noqa: E501
    ("NVIDIA H100 80GB HBM3", "H100 SXM"), ("h100 80gb", "H100 SXM"), ("h100 nvl", "H100 NVL"), ("nvidia h100 pcie", "H100 PCIe"),  # noqa: E501
    ("h200", "H200 SXM"), ("H20", "H20"), ("rtx 4090", "GeForce RTX 4090"), ("4090", "GeForce RTX 4090"), ("l40s", "L40S"),  # noqa: E501
])  # fmt: skip
def test_a_gpu_is_known_by_what_users_call_it(written: str, meant: str):
    assert load_hardware().named(written).name == meant


@pytest.mark.parametrize("written", ["a100", "A100 SXM 40", "sxm", "", "h10", "mi300", "H2000"])
def test_what_is_ambiguous_or_unknown_is_one_line_with_the_candidates(written: str):
    with pytest.raises(UserError) as error:
        load_hardware().named(written)
    assert "\n" not in str(error.value) and (
        "may be" in str(error.value) or "Unknown GPU" in str(error.value)
    )
    if written == "a100":
        assert "'A100 SXM 80 GB' or 'A100 PCIe 80 GB' or 'A100 40 GB'" in str(error.value)


def test_only_whole_words_count():
    names = {"h20": ["NVIDIA H20"], "h200": ["NVIDIA H200"]}
    assert matches("H20", names) == ["h20"] and matches("h2", names) == [] and matches("nvidia", names) == []
