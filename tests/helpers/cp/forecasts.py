"""Calls and devices for forecasts."""

from longca.core.schema import CallSpec
from longca.cp.forecast import DeviceModel
from longca.masks import Mask
from longca.predict.fitted import load_fitted


def call(direction: str = "fwd") -> CallSpec:
    return CallSpec(64, 8, 128, "bf16", direction)  # type: ignore[arg-type]


def device(mask: Mask, direction: str = "fwd") -> DeviceModel:
    model = load_fitted().find("band", direction, mask.traits, 8)
    assert model is not None
    return DeviceModel(model, 4e12, merges=True)
