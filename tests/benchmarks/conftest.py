"""Ranks of benchmarks are forked from the server of tests, whose start they share; in the slow run they are
also started as users do."""

import argparse
from collections.abc import Callable

import pytest

from longca.cp.comm.backend import Comm
from tests.cp.ranks import on_ranks

Work = Callable[[Comm, argparse.Namespace], object]


@pytest.fixture(params=["forked", pytest.param("started", marks=pytest.mark.slow)])
def ranks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def forked(work: Work, options: argparse.Namespace) -> None:
        on_ranks(work, options.ranks, options, device_type=options.device)

    if request.param == "forked":
        for module in ("compare", "hops"):
            monkeypatch.setattr(f"benchmarks.cp.{module}.run_on_ranks", forked)
