"""Facts of makers about GPUs, found by a GPU's own name and by the names that people give it."""

import re

import pytest

from longca.core.errors import UserError
from longca.core.hardware import Hardware, load_hardware


def test_hardware_is_found_by_its_whole_name(tmp_path):
    hardware = load_hardware()
    assert hardware.find("NVIDIA H20").peak_tflops.value < hardware.find("NVIDIA H200").peak_tflops.value
    assert hardware.find("") is None and Hardware().peak_tflops("NVIDIA H200", "bf16") is None
    twice = tmp_path / "hardware.yaml"
    entry = (
        "- {name: X, gpu_names: [G], peak_tflops: {value: 1, source: 'https://x'}, bandwidth_gb_s: "
        "{value: 1, source: 'https://x'}}\n"
    )
    twice.write_text(entry * 2)
    with pytest.raises(UserError, match="'G' is repeated"):
        load_hardware(twice)
    twice.write_text(entry.replace("value: 1", "value: 0", 1))
    with pytest.raises(UserError, match="greater than 0"):
        load_hardware(twice)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("H200", "H200 SXM"),
        ("h200 sxm", "H200 SXM"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("H20", "H20"),
        ("a100 sxm", "A100 SXM 80 GB"),
    ],
)
def test_a_gpu_is_found_by_the_names_that_people_give_it(name: str, found: str) -> None:
    assert load_hardware().named(name).name == found


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "A100",
            "GPU 'A100' may be 'A100 SXM 80 GB' or 'A100 PCIe 80 GB' or 'A100 40 GB'. Give one of these names",  # noqa: E501
        ),
        ("H300", "Unknown GPU 'H300'"),
        ("", "Unknown GPU ''"),
    ],
)
def test_a_name_of_several_gpus_or_none_is_refused(name: str, said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        load_hardware().named(name)
