"""Changes of inputs between timed calls."""

import pytest
import torch

from longca.lab.bench.check.changes import Changes
from longca.lab.bench.check.digest import content_digest
from longca.lab.studies.masks import cell_mask
from tests.helpers.bench.cells import small_cell

pytestmark = pytest.mark.long


def test_changes_follow_from_the_seed_and_differ_from_call_to_call() -> None:
    cell = small_cell("naive", "causal", seqlen=256)
    mask = cell_mask(cell)
    x = torch.zeros(256, 4, 16)
    contents = []
    for seed, call in ((1, 1), (1, 2), (1, 40), (2, 1), (1, 1)):
        changed = x.clone()
        Changes(cell, mask, seed).apply("q", changed, call)
        contents.append(changed)
    assert (
        torch.equal(contents[0], contents[-1]) and len({content_digest(content) for content in contents}) == 4
    )
    for site in Changes(cell, mask, 5).sites:
        assert mask.dense()[site.row, site.key] and site.q_head // 2 == site.kv_head
