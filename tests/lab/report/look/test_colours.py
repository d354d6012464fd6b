"""Each method has one colour everywhere, which can be told from its neighbours and from the ground."""

import itertools

import numpy as np
import pytest

from longca.core.plugin import Registry
from longca.core.schema import AS_RELEASED
from longca.lab.report.look.colours import KERNELS, MARKERS, SPARE, STRATEGIES, looks, text_colour, theme


def test_each_name_has_one_look_whatever_else_is_there():
    alone = looks(["fa3"])
    together = looks([*KERNELS, *(f"{name}+fa3" for name in STRATEGIES), "unknown"])
    assert alone["fa3"] == together["fa3"] and looks(["unknown"])["unknown"] == together["unknown"]
    assert len({look.colour for look in together.values()}) == len(together), "never one colour for two"
    assert {look.marker for method, look in together.items() if method.endswith("+fa3")} == {
        alone["fa3"].marker
    }
    assert {look.variable for look in together.values()} <= {name for name, _, _ in theme().values()}
    assert {marker for _, _, marker in KERNELS.values()} <= MARKERS.keys()


def test_unknown_names_take_spare_colours_of_their_own():
    names = [f"mine_{index}" for index in range(len(SPARE))]
    styles = looks(names)
    assert len({look.colour for look in styles.values()}) == len(SPARE) and styles == looks(names[::-1])
    assert len(looks([*names, "one_more"])) == len(SPARE) + 1


def test_every_kernel_and_strategy_of_the_package_has_a_colour():
    ranked = {name for name in Registry("kernel", []).names() if not name.startswith(AS_RELEASED)}
    assert ranked == KERNELS.keys() and set(Registry("strategy", []).names()) == STRATEGIES.keys()


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def contrast(first: float, other: float) -> float:
    return (max(first, other) + 0.05) / (min(first, other) + 0.05)


def mixed(colour: str, other: str, share: float) -> str:
    """`share` of the one colour and the rest of the other, in sRGB."""
    pairs = [(int(colour[at : at + 2], 16), int(other[at : at + 2], 16)) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(share * first + (1 - share) * second):02x}" for first, second in pairs)


def oklab(colour: str) -> np.ndarray:
    """Lightness and two axes of hue, in which equal distances look alike."""
    channels = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    cones = np.cbrt(
        np.array([[0.41222, 0.53633, 0.05145], [0.21190, 0.68070, 0.10740], [0.08830, 0.28172, 0.62998]])
        @ linear
    )
    return (
        np.array([[0.21045, 0.79362, -0.00407], [1.97800, -2.42859, 0.45059], [0.02590, 0.78277, -0.80868]])
        @ cones
    )


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(
    "together",
    [
        ("band", "vsa", "fa2_sparse", "flashinfer", "flex", "flex_flash", "fa4", "cudnn_bsa", "cudnn_flex"),
        ("band", "naive", "sdpa", "fa2", "fa3", "fa4", "cudnn", "cudnn_graph", "flex", "flashmask"),
    ],
)
def test_kernels_of_one_study_look_different(together, dark):
    for first, other in itertools.combinations(together, 2):
        assert np.linalg.norm(oklab(KERNELS[first][dark]) - oklab(KERNELS[other][dark])) > 0.07, (
            first,
            other,
        )


@pytest.mark.parametrize("dark", [False, True])
def test_colours_stand_out_from_their_ground(dark):
    grounds = {name: (light, night) for name, light, night in theme().values()}
    ground = luminance(grounds["ground"][dark])
    for name, pair in grounds.items():
        is_line = name.startswith(("k-", "s-", "spare-")) or name == "faint"
        if is_line or name in ("ink", "muted", "bad"):
            assert contrast(luminance(pair[dark]), ground) >= (3.0 if is_line else 4.5), name
        if is_line and name != "faint":  # as text it is mixed with ink: figures.css
            assert contrast(luminance(mixed(pair[dark], grounds["ink"][dark], 0.7)), ground) >= 4.5, name


def test_text_can_be_read_on_any_ground():
    for ground in (
        "#000000",
        "#ffffff",
        *(f"#{level:02x}{level:02x}{level:02x}" for level in range(100, 140)),
    ):
        assert contrast(luminance(text_colour(ground)), luminance(ground)) >= 4.5, ground
