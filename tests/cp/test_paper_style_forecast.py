"""Forecasts of the two strategies in the style of the study: padded keys, and collectives over nodes."""

from dataclasses import replace

import numpy as np
import pytest

from longca.cp.paper_style_forecast import GATHER, RING, forecast_paper_style
from longca.cp.schedule.planner import LinkSpeeds
from longca.masks import build_mask
from tests.helpers.cp.forecasts import call, device

FREE = LinkSpeeds(1e30, 1e30, 0.0)


@pytest.mark.parametrize("strategy", [RING, GATHER])
def test_the_studys_schedules_move_padded_keys(strategy: str):
    mask = build_mask("causal", seqlen=65536)
    prediction = forecast_paper_style(strategy, mask, call(), 4, device(mask), LinkSpeeds())
    assert prediction.sent_bytes == 3 * 2 * 16384 * 8 * 128 * 2
    assert prediction.seconds > forecast_paper_style(strategy, mask, call(), 4, device(mask), FREE).seconds


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_a_collective_over_nodes_uses_all_adapters_of_a_node(direction: str):
    """Eight adapters bring the shards of the other eight ranks into a node, each an eighth; a ring's hop has
    one adapter to itself."""
    mask = build_mask("causal", seqlen=131072)
    links = LinkSpeeds(1e12, 1e9, 0.0, 0.0, 0.0, 8)
    quick = replace(links, intra_node_bytes_per_s=np.inf, inter_node_bytes_per_s=np.inf)
    shard = 2 * 8192 * 8 * 128 * 2
    ways = 1 if direction == "fwd" else 2
    slow, free = (
        forecast_paper_style(GATHER, mask, call(direction), 16, device(mask, direction), entry)
        for entry in (links, quick)
    )
    assert (
        slow.seconds - free.seconds == pytest.approx(ways * 8 / 8 * shard / 1e9)
        and slow.inter_node_bytes == ways * shard
    )
    ring = forecast_paper_style(RING, mask, call(direction), 16, device(mask, direction), links)
    assert ring.seconds > 15 * shard / 1e9, "each of its hops crosses nodes on some rank, and all wait for it"
