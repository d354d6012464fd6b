"""Calls of band attention by Triton's own launchers, over a stand-in for the driver: a replayed call hands
them what one as written does.

    python -m tests.benchmarks.band_replayed

For versions of Triton other than the installed one, which `recorded_launches` does not stand in for. Two
calls as written differ by addresses alone, and so do they and replays: addresses are compared by the order in
which they appear.
"""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from triton.backends.nvidia import driver as nvidia

from benchmarks.band.driver_stand_in import StandIn
from longca.masks import build_mask
from longca.ops.band.api import band_backward, band_forward, plan_band_attention

NOT_HANDED_ON = ("HookChain", "LazyDict", "NoneType")


class Handed:
    """The arguments that the launchers below Triton's own got, and the TMA descriptors that were made."""

    def __init__(self) -> None:
        self.launches: list[Any] = []
        self._addresses: dict[int, int] = {}
        self._descriptors: dict[int, tuple[Any, ...]] = {}
        self._kept: list[Any] = []
        wrap = nvidia.wrap_handle_tensordesc
        nvidia.wrap_handle_tensordesc = lambda launcher, *rest: wrap(self._noted(launcher), *rest)

    def take_descriptors_of(self, utils: Any) -> None:
        name = next(
            name for name in ("fill_tma_descriptor_tiled", "fill_tma_descriptor") if hasattr(utils, name)
        )
        fill = getattr(utils, name)

        def filled(address: int, *form: Any) -> Any:
            self._kept.append(fill(address, *form))
            self._descriptors[id(self._kept[-1])] = address, *map(str, form)
            return self._kept[-1]

        setattr(utils, name, filled)

    def since_the_last(self) -> list[Any]:
        launches = self.launches
        self.launches = []
        self._addresses = {}
        return launches

    def _noted(self, launcher: Callable[..., Any]) -> Callable[..., Any]:
        def launch(*args: Any) -> Any:
            self.launches.append(tuple(map(self._plain, args)))
            return launcher(*args)

        return launch

    def _plain(self, arg: Any) -> Any:
        if id(arg) in self._descriptors:
            address, *form = self._descriptors[id(arg)]
            return self._place_of(address), *form
        if isinstance(arg, tuple | list):
            return tuple(map(self._plain, arg))
        if hasattr(arg, "data_ptr"):
            return self._plain(arg.data_ptr())
        # an address: nothing else is as large, and an interpreter at a fixed place has its heap above 4 MiB
        if isinstance(arg, int) and arg > 1 << 22:
            return self._place_of(arg)
        return None if type(arg).__name__ in NOT_HANDED_ON else arg

    def _place_of(self, address: int) -> tuple[str, int]:
        return "address", self._addresses.setdefault(address, len(self._addresses))


def main() -> None:
    handed = Handed()
    with tempfile.TemporaryDirectory() as folder:
        stand_in = StandIn(Path(folder))
        handed.take_descriptors_of(nvidia.CudaUtils())
        for head_dim, directions in ((128, ("forward",)), (64, ("forward", "backward"))):
            plan = plan_band_attention(
                build_mask("causal", seqlen=300),
                num_q_heads=8,
                num_kv_heads=2,
                head_dim=head_dim,
                device="cpu",
            )
            q, out, dout = (torch.zeros(300, 8, head_dim, dtype=torch.bfloat16) for _ in range(3))
            k, v = (torch.zeros(300, 2, head_dim, dtype=torch.bfloat16) for _ in range(2))
            lse = torch.zeros(300, 8)
            kept = []
            calls = {
                "forward": lambda plan: band_forward(q, k, v, plan, into=(out, lse)),  # noqa: B023 - called in this round
                "backward": lambda plan: kept.append(band_backward(q, k, v, out, lse, dout, plan)),  # noqa: B023
            }
            for direction in directions:
                handed.since_the_last()
                calls[direction](plan)
                as_written = handed.since_the_last()
                assert len(plan.calls) and as_written, "not recorded"
                before = stand_in.launches
                for _ in range(2):
                    calls[direction](plan)
                    assert handed.since_the_last() == as_written, (head_dim, direction)
                assert stand_in.launches == before + 2 * len(as_written)
                calls[direction](replace(plan))
                assert handed.since_the_last() == as_written, "two calls as written differ"
                print(f"replayed: head dim {head_dim}, {direction}, {len(as_written)} launches")


if __name__ == "__main__":
    main()
