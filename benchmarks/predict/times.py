"""Times predictions themselves: all own strategies under all masks, for many ranks, on one core.

    python -m benchmarks.predict.times [--ranks 96] [--tokens 8K] [--seconds 120] [--write
    docs/results/h200/prediction.md]

Planning is the strategy's own: the engine would take as long. Forecasts are the time line on top of it,
forward and backward.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.common.text import names
from longca.core import CallSpec, Registry, format_length, load_hardware, parse_length
from longca.cp.forecast import PASS_EFFICIENCY, DeviceModel, forecast, links_of
from longca.lab.advice.recorded import OWN
from longca.masks import Mask, build_mask
from longca.predict.fitted import load_fitted
from tools.table import Table, add_options

KERNEL = "band"
PROFILE = "h200-copy-engines"


def line(mask: Mask, strategy: str, world: int) -> dict[str, Any]:
    """Seconds of planning and of forecasting. The first strategy under a mask counts its tiles for all."""
    call = CallSpec(64, 8, 128, "bf16", "bwd")
    kernel = Registry("kernel").load(KERNEL)
    hardware = load_hardware()
    fitted = load_fitted()
    built = time.process_time()
    work = Registry("strategy").load(strategy).partition_call(mask, call, world, kernel, "cuda")
    planned = time.process_time()
    network = next(network for network in hardware.networks if network.name == PROFILE)
    bandwidth = (hardware.bandwidth_gb_s(fitted.device) or 0) * 1e9 * PASS_EFFICIENCY
    seconds = 0.0
    for direction in ("fwd", "bwd"):
        model = fitted.find(KERNEL, direction, mask.traits, 8)
        assert model is not None, "it has records of all kinds of masks"
        asked = CallSpec(64, 8, 128, "bf16", direction)
        seconds += forecast(
            work, asked, DeviceModel(model, bandwidth, kernel.merges), links_of(network)
        ).seconds
    done = time.process_time()
    return {
        "mask": mask.name,
        "strategy": strategy,
        "ranks": world,
        "plan_s": planned - built,
        "forecast_s": done - planned,
        "predicted_ms": seconds * 1e3,
    }


def main(arguments: Sequence[str]) -> int:
    known = [name for name in Registry("mask").names() if Registry("mask").load(name).family != "dynamic"]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.predict.times", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("--ranks", type=int, default=96)
    parser.add_argument("--tokens", type=parse_length, default=8192, help="of each rank (8K)")
    parser.add_argument("--masks", type=lambda text: names(text, known), default=known, help=", ".join(known))
    parser.add_argument("--strategies", type=lambda text: names(text, OWN), default=OWN, help=", ".join(OWN))
    parser.add_argument("--seconds", type=float, default=600.0, help="after which no line is begun (600)")
    add_options(parser)
    options = parser.parse_args(arguments)
    records = []
    end = time.monotonic() + options.seconds
    for name in options.masks:
        uses_documents = Registry("mask").load(name).uses_documents
        mask = build_mask(
            name, seqlen=options.ranks * options.tokens, corpus="prolong64k" if uses_documents else None
        )
        records += [
            line(mask, strategy, options.ranks) for strategy in options.strategies if time.monotonic() < end
        ]
    rows = []
    for strategy in options.strategies:
        here = [record for record in records if record["strategy"] == strategy]
        if here:
            slowest = max(here, key=lambda entry: entry["plan_s"] + entry["forecast_s"])
            rows.append(
                (
                    strategy,
                    str(len(here)),
                    *(f"{sum(entry[key] for entry in here):.1f}" for key in ("plan_s", "forecast_s")),
                    slowest["mask"],
                    f"{slowest['plan_s']:.2f} + {slowest['forecast_s']:.2f}",
                )
            )
    caption = (
        f"Seconds of one core for {options.ranks} ranks × {format_length(options.tokens)} tokens, forward "
        "and backward: planning as the engine does it, and the forecast on top. Last, the mask that takes "
        "longest."
    )
    columns = ("strategy", "masks", "planning", "forecast", "slowest mask", "its seconds")
    Table("predict_times", caption, columns, tuple(rows), tuple(records), (columns[0], columns[4])).publish(
        options
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
