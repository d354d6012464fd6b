"""NaN and infinity of one packed document stay in it over ranks, whatever shares the work among them."""

import math
from functools import partial
from unittest.mock import patch

import pytest
import torch

from longca.cp.comm.backend import Comm
from longca.cp.context import context_parallel
from tests.helpers.cp import public_calls as public
from tests.helpers.cp.ranks import on_ranks

HIT = slice(47, 77)  # the third document of `DOCUMENTS`: its tokens are on both ranks in every division
NAMES = ("q", "k", "v", "dout")


def spoiled(hit: int | None, value: float) -> tuple[torch.Tensor, ...]:
    tensors = [x.clone() for x in INPUTS]
    if hit is not None:
        tensors[hit][50, 0, 3] = tensors[hit][70, 1] = value
    return tuple(tensors)


INPUTS = public.inputs()


def everywhere(comm: Comm) -> list[str]:
    """The leaks of NaN into other documents, for each strategy and input; none if all is well."""
    wrong = []
    for strategy in public.OWN:
        cp = context_parallel(public.DOCUMENTS, strategy=strategy, **public.HEADS)
        sound = public.both_ways(cp)
        others = torch.ones(public.T, dtype=torch.bool)
        others[HIT] = False
        for hit, value in [(0, math.nan), (1, math.inf), (2, math.nan), (2, -math.inf), (3, math.nan)]:
            with patch.object(public, "inputs", partial(spoiled, hit, value)):
                texts = public.both_ways(cp)
            for name, x in texts.items():
                if not torch.equal(x[others], sound[name][others]):
                    wrong.append(f"{strategy}: {value} of {NAMES[hit]} reaches {name} of other documents")
            if torch.isfinite(texts["dq"][HIT]).all():
                wrong.append(f"{strategy}: {value} of {NAMES[hit]} is lost")
        cp.close()
    return wrong


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_it_stays_in_its_document_under_every_strategy(world: int):
    assert on_ranks(everywhere, world) == [[]] * world
