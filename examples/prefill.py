"""Prefills a long prompt in chunks over many ranks, without gradients: each rank keeps the keys of its own tokens.

    python examples/prefill.py                                                   # alone
    torchrun --nproc-per-node 2 examples/prefill.py --chunk 64
    torchrun --nproc-per-node 4 examples/prefill.py --chunk 64 --documents 100,60,96

The masks of all chunks share one sharding, so that keys stay on their rank: the mask of a chunk has its rows of the
mask of the whole prompt, and hides all else from all other rows. Each rank takes a share of every chunk. The loss of
the prompt and the next token are those of one rank, and of one chunk.
"""  # noqa: E501

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import longca
from longca.core import UserError, parse_length
from longca.cp import ContextParallel
from longca.masks import Mask

VOCABULARY = 256


@dataclass(frozen=True)
class Options:
    tokens: int = 256
    chunk: int = 256
    """tokens of the prompt that are computed at once"""
    documents: tuple[int, ...] = ()
    """tokens of the documents in the prompt, which do not see each other; () for one"""
    layers: int = 2
    num_q_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    strategy: str = "ring_allgather"
    """one that divides heads alone keeps chunks whole: one rank then computes all other layers of a chunk"""
    dtype: str = "bfloat16"
    seed: int = 0

    def masks(self) -> list[Mask]:
        """The mask of each chunk, over the whole prompt."""
        whole = Mask.from_documents(self.documents or [self.tokens])
        return [whole.cut((start, end), (0, self.tokens)) for start, end in self.chunks()]

    def chunks(self) -> list[tuple[int, int]]:
        starts = range(0, self.tokens, self.chunk)
        return [(start, min(start + self.chunk, self.tokens)) for start in starts]


class Layer(nn.Module):
    """Attention and a feed-forward layer, with the keys and values of this rank's tokens so far."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        width = options.num_q_heads * options.head_dim
        self.heads = options.num_q_heads, options.num_kv_heads, options.num_kv_heads
        self.head_dim = options.head_dim
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
        self.qkv = nn.Linear(width, sum(self.heads) * options.head_dim, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def cache(self, cp: ContextParallel) -> list[Tensor]:
        """q, k and v of this rank's tokens, still 0."""
        weight = self.qkv.weight
        return [weight.new_zeros(cp.num_tokens, heads, self.head_dim) for heads in self.heads]

    def forward(
        self, x: Tensor, rows: Tensor, cp: ContextParallel, chunk: int, cache: list[Tensor]
    ) -> Tensor:
        """
        Args:
            x: this rank's tokens of the chunk, (n, width).
            rows: their numbers among this rank's tokens, (n,).
        """
        qkv = self.qkv(self.norms[0](x)).unflatten(1, (-1, self.head_dim)).split(self.heads, dim=1)
        positions = cp.positions[rows]
        for kept, new in zip(
            cache, (rotated(qkv[0], positions), rotated(qkv[1], positions), qkv[2]), strict=True
        ):
            kept[rows] = new
        out = cp.attention(*cache, mask=chunk)[rows]  # 0 in all other rows, which cost nothing
        x = x + self.out(out.flatten(1))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary position embedding: positions are those of the whole prompt."""
    half = x.shape[-1] // 2
    angle = positions[:, None, None] * 10000.0 ** (-torch.arange(half, device=x.device) / half)
    first, second = x.float().split(half, dim=-1)
    turned = first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()
    return torch.cat(turned, dim=-1).to(x.dtype)


class Model(nn.Module):
    def __init__(self, options: Options) -> None:
        super().__init__()
        width = options.num_q_heads * options.head_dim
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.layers: Any = nn.ModuleList([Layer(options) for _ in range(options.layers)])
        self.head = nn.Sequential(nn.RMSNorm(width), nn.Linear(width, VOCABULARY, bias=False))

    def forward(self, tokens: Tensor, rows: Tensor, cp: ContextParallel, chunk: int, caches: Any) -> Tensor:
        """Logits of this rank's tokens of a chunk."""
        x = self.embedding(tokens)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, rows, cp, chunk, cache)
        return self.head(x).float()


@torch.inference_mode()
def prefill(options: Options, group: Any = None) -> dict[str, Any]:
    """The loss of the prompt and the next token, on every rank. All ranks of the group call it together."""
    dtype = getattr(torch, options.dtype)
    cp = longca.context_parallel(
        options.masks(),
        group,
        options.strategy,
        num_q_heads=options.num_q_heads,
        num_kv_heads=options.num_kv_heads,
        head_dim=options.head_dim,
        dtype=dtype,
        backward=False,
    )
    device = cp.positions.device
    torch.manual_seed(options.seed)
    prompt = torch.randint(VOCABULARY, (options.tokens + 1,))
    model = Model(options).to(device, dtype)
    tokens, labels = (cp.shard(x.to(device)) for x in (prompt[:-1], prompt[1:]))
    caches = [layer.cache(cp) for layer in model.layers]
    result = torch.zeros(1 + VOCABULARY, device=device)  # the loss, and the logits of the last token
    for chunk, (start, end) in enumerate(options.chunks()):
        rows = ((cp.positions >= start) & (cp.positions < end)).nonzero()[:, 0]
        logits = model(tokens[rows], rows, cp, chunk, caches)
        result[0] += F.cross_entropy(logits, labels[rows], reduction="sum") / options.tokens
        result[1:] += logits[cp.positions[rows] == options.tokens - 1].sum(0)
    if dist.is_initialized():
        dist.all_reduce(result, group=group)
    facts = {
        "loss": float(result[0]),
        "next": int(result[1:].argmax()),
        "logits": result[1:].cpu(),
        "tokens": [
            int(((cp.positions >= start) & (cp.positions < end)).sum()) for start, end in options.chunks()
        ],
        "sharding": f"{cp.strategy}, {cp.sharding}",
        "rank": cp.rank,
    }
    cp.close()
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--documents", type=lambda text: tuple(map(int, text.split(","))), default=())
    for name, kind in (("tokens", parse_length), ("chunk", parse_length), ("layers", int),
                       ("num_q_heads", int), ("num_kv_heads", int), ("head_dim", int), ("strategy", str),
                       ("dtype", str), ("seed", int)):  # fmt: skip
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=getattr(Options, name))
    torch.set_num_threads(1)
    if "LOCAL_RANK" in os.environ:
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    try:
        facts = prefill(Options(**vars(parser.parse_args())))
    except UserError as error:  # of all ranks alike
        parser.error(str(error))
    if facts["rank"] == 0:
        print(f"loss {facts['loss']:.3f}, next token {facts['next']}; {facts['sharding']}")
        print(f"tokens of rank 0 in each chunk: {facts['tokens']}")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
