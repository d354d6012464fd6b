"""Trains a small transformer on packed documents, on one rank or on many: only the lines with `cp` know how
many there are.

    python examples/train_packed.py                                                         # alone
    torchrun --nproc-per-node 2 examples/train_packed.py --strategy ring_p2p                # two ranks of a laptop or of a GPU machine
    torchrun --nproc-per-node 4 examples/train_packed.py --mask alternating --tokens 1024

Each step has one sequence of new documents, whose lengths come from a corpus of the project, and a mask of
its own: it is planned in the background while the step before is computed. Tokens are drawn so that nine of
ten follow from the one two places before, which attention alone can look at. So the loss stays near
log(vocabulary) until attention has learnt to look there, and then falls towards the entropy of the rest. It
is the same for any number of ranks but for rounding.
"""  # noqa: E501

from __future__ import annotations

import argparse
import csv
import math
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import longca
from longca.core import UserError
from longca.cp import ContextParallel
from longca.data import sample_documents
from longca.masks import Mask, build_mask

MASKS = {  # the masks of the layers, which take turns
    "causal": ("causal",),
    "causal_document": ("causal_document",),
    "causal_sliding_window": ("causal_sliding_window",),
    "alternating": ("causal_document", "causal_sliding_window"),
}
VOCABULARY = 64
WINDOW = 64
# nine tokens of ten follow from the one LAG places before
RULED = 0.9
LAG = 2
IGNORED = -100  # the last token of a document has nothing to predict


@dataclass(frozen=True)
class Options:
    mask: str = "causal_document"
    strategy: str = "auto"
    tokens: int = 256
    steps: int = 200
    layers: int = 2
    num_q_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    dtype: str = "float32"
    """of attention's inputs; weights are in float32"""
    corpus: str = "prolong64k"
    seed: int = 0
    rate: float = 3e-3
    off_by: float = 0.0
    """relative change of the first weights at the start: it shows what a rounding does to the curve"""

    @property
    def width(self) -> int:
        return self.num_q_heads * self.head_dim

    def masks(self, step: int) -> list[Mask]:
        """The masks of a step's sequence."""
        return [
            build_mask(name, seqlen=self.tokens, window=WINDOW)
            if "window" in name
            else build_mask(
                name, seqlen=self.tokens, documents=self.documents(step) if "document" in name else None
            )
            for name in MASKS[self.mask]
        ]

    def documents(self, step: int) -> np.ndarray:
        """Lengths of the documents of a step."""
        return sample_documents(self.corpus, self.tokens, seed=self.seed + step)

    def sequence(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(tokens, the next token of each): the same on every rank."""
        rng = np.random.default_rng([self.seed, step])
        rule = np.random.default_rng(self.seed).permutation(VOCABULARY)
        tokens = rng.integers(VOCABULARY, size=self.tokens)
        free = rng.random(self.tokens) > RULED
        starts = np.concatenate([[0], np.cumsum(self.documents(step))])
        free[(starts[:-1, None] + np.arange(LAG)).clip(max=self.tokens - 1)] = True
        tokens = followed(tokens, free, rule)
        labels = np.roll(tokens, -1)
        labels[starts[1:] - 1] = IGNORED
        return torch.from_numpy(tokens), torch.from_numpy(labels)


class Block(nn.Module):
    """Attention and a feed-forward layer, each with its norm."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.heads = options.num_q_heads, options.num_kv_heads, options.num_kv_heads
        self.head_dim = options.head_dim
        self.dtype = getattr(torch, options.dtype)
        self.norms = nn.ModuleList([nn.RMSNorm(options.width), nn.RMSNorm(options.width)])
        self.qkv = nn.Linear(options.width, sum(self.heads) * options.head_dim, bias=False)
        self.out = nn.Linear(options.width, options.width, bias=False)
        self.up = nn.Linear(options.width, 4 * options.width)
        self.down = nn.Linear(4 * options.width, options.width)

    def forward(self, x_LE: torch.Tensor, cp: ContextParallel, mask: int) -> torch.Tensor:
        q, k, v = self.qkv(self.norms[0](x_LE)).unflatten(1, (-1, self.head_dim)).split(self.heads, dim=1)
        q, k, v = (x.to(self.dtype) for x in (rotated(q, cp.positions), rotated(k, cp.positions), v))
        x_LE = x_LE + self.out(cp.attention(q, k, v, mask=mask).to(x_LE.dtype).flatten(1))
        return x_LE + self.down(F.gelu(self.up(self.norms[1](x_LE))))


class Model(nn.Module):
    def __init__(self, options: Options) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, options.width)
        self.blocks = nn.ModuleList([Block(options) for _ in range(options.layers)])
        self.head = nn.Sequential(nn.RMSNorm(options.width), nn.Linear(options.width, VOCABULARY, bias=False))

    def forward(self, tokens_L: torch.Tensor, cp: ContextParallel) -> torch.Tensor:
        """Logits of this rank's tokens."""
        x_LE = self.embedding(tokens_L)
        for number, block in enumerate(self.blocks):
            x_LE = block(x_LE, cp, mask=number % len(cp.masks))
        return self.head(x_LE)


def followed(tokens: np.ndarray, free: np.ndarray, rule: np.ndarray) -> np.ndarray:
    """The tokens, but those that are not free become what the rule makes of the token LAG places before."""
    places = np.arange(len(tokens))
    last = np.empty_like(places)  # the place of the free token that each one goes back to
    for first in range(LAG):
        last[first::LAG] = np.maximum.accumulate(np.where(free, places, first)[first::LAG])
    times = (places - last) // LAG
    powers = [np.arange(len(rule))]
    for _ in range(times.max()):
        powers.append(rule[powers[-1]])
    return np.stack(powers)[times, tokens[last]]


def rotated(x_LHD: torch.Tensor, positions_L: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding: positions are those of the whole sequence."""
    half = x_LHD.shape[-1] // 2
    frequencies = 10000.0 ** (-torch.arange(half, device=x_LHD.device) / half)
    angle = (positions_L[:, None] * frequencies)[:, None].to(x_LHD.dtype)
    first, second = x_LHD.split(half, dim=-1)
    return torch.cat(
        [first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()], dim=-1
    )


def train(options: Options, group: Any = None, log: Any = None) -> dict[str, Any]:
    """Trains, and returns the loss of each step and what it took. All ranks of the group call it together.

    Args:
        log: called with a line now and then, on rank 0.
    """
    cp = longca.context_parallel(
        options.masks(0),
        group,
        options.strategy,
        num_q_heads=options.num_q_heads,
        num_kv_heads=options.num_kv_heads,
        head_dim=options.head_dim,
        dtype=getattr(torch, options.dtype),
    )
    device = cp.positions.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    torch.manual_seed(options.seed)
    model = Model(options).to(device)
    with torch.no_grad():
        model.embedding.weight.mul_(1 + options.off_by)
    optimizer = torch.optim.AdamW(model.parameters(), options.rate)
    totals = []
    labels_of = []
    chosen = set()
    waited_ms = []
    plan_ms = []
    start = time.perf_counter()
    for step in range(options.steps):
        if step + 1 < options.steps:
            cp.plan_ahead(options.masks(step + 1))  # in the background
        tokens, labels = (cp.shard(x.to(device)) for x in options.sequence(step))
        logits = model(tokens, cp)
        total = F.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum")
        labels_of.append(options.tokens - len(options.documents(step)))
        (total / labels_of[-1]).backward()
        totals += summed([total.detach()], group)  # not read before the end: so the host runs ahead of a GPU
        summed([weight.grad for weight in model.parameters() if weight.grad is not None], group)
        optimizer.step()
        optimizer.zero_grad()
        chosen.add(cp.strategy)
        if log is not None and cp.rank == 0 and (step % 20 == 0 or step + 1 == options.steps):
            loss = float(totals[-1]) / labels_of[-1]
            seconds = time.perf_counter() - start
            log(
                f"step {step:3d}  loss {loss:.4f}  {(step + 1) * options.tokens / seconds:6.0f} tokens/s  "
                f"{cp.strategy}, {cp.sharding}"
            )
        if step + 1 < options.steps:
            cp = cp.with_mask(options.masks(step + 1))
            waited_ms.append(cp.costs["waited_ms"])
            plan_ms.append(cp.costs["plan_ms"])
    losses = [float(total) / num_labels for total, num_labels in zip(totals, labels_of, strict=True)]
    seconds = time.perf_counter() - start
    found = {
        "rank": cp.rank,
        "losses": losses,
        "tokens_per_s": options.steps * options.tokens / seconds,
        "peak_mb": peak_mb(device),
        "strategies": sorted(chosen),
        "plan_ms": float(np.median(plan_ms or [0])),
        "waited_ms": float(np.median(waited_ms or [0])),
        "moved_bytes": cp.moved_bytes,
    }
    cp.close()
    return found


def summed(tensors: list[torch.Tensor], group: Any) -> list[torch.Tensor]:
    """The tensors summed over ranks, in place, by one message."""
    flat = torch.cat([x.reshape(-1) for x in tensors])
    dist.all_reduce(flat, group=group)
    for x, part in zip(tensors, flat.split([x.numel() for x in tensors]), strict=True):
        x.copy_(part.view_as(x))
    return tensors


def peak_mb(device: torch.device) -> float:
    """The largest memory of this process: of the GPU where it computes on one, else of the host."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def entropy() -> float:
    """Nats a token that nobody can predict, beside those that begin documents."""
    other = (1 - RULED) / VOCABULARY
    return -(RULED + other) * math.log(RULED + other) - (VOCABULARY - 1) * other * math.log(other)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--mask", choices=MASKS, default="causal_document")
    parser.add_argument("--strategy", default="auto", help='as "ring_p2p" or "usp(heads=2)"')
    for name, kind in (
        ("tokens", int),
        ("steps", int),
        ("layers", int),
        ("num_q_heads", int),
        ("num_kv_heads", int),
        ("head_dim", int),
        ("dtype", str),
        ("seed", int),
        ("rate", float),
    ):
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=getattr(Options, name))
    parser.add_argument("--corpus", default=Options.corpus)
    parser.add_argument("--csv", type=Path, help="for the loss of each step")
    given = vars(parser.parse_args())
    target = given.pop("csv")
    torch.set_num_threads(1)
    try:
        found = train(Options(**given), log=print)
    except UserError as error:  # of all ranks alike
        parser.error(str(error))
    if found["rank"] == 0:
        print(
            f"loss {found['losses'][0]:.3f} → {found['losses'][-1]:.3f} (the entropy of the tokens is "
            f"{entropy():.2f} on average); "
            f"{found['tokens_per_s']:.0f} tokens/s, {found['peak_mb']:.0f} MB; planning "
            f"{found['plan_ms']:.1f} ms a step, of which "
            f"{found['waited_ms']:.1f} ms were waited for; {found['moved_bytes'] / 1e6:.1f} MB sent by rank 0"
        )
        if target is not None:
            with target.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([("step", "loss"), *enumerate(found["losses"])])


if __name__ == "__main__":
    main()
