"""Trains a small transformer with context, data and tensor parallelism at once: FSDP2 × CP × TP in one DeviceMesh.

    python examples/train_composed.py                                                              # alone
    torchrun --nproc-per-node 4 examples/train_composed.py --tensor 2                              # 1 × 2 × 2
    torchrun --nproc-per-node 8 examples/train_composed.py --data 2 --tensor 2 --checkpoint reentrant

Each step accumulates the gradients of several packed sequences, the micro-batches. Their lengths and documents
differ, so each has a mask of its own: a background thread plans the next one while this one is computed. Documents
are arithmetic progressions, whose pace attention must find. The loss is the same for any number of ranks but for
rounding. Where there are GPUs, it uses them.
"""  # noqa: E501

from __future__ import annotations

import argparse
import math
import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

import longca
from longca.core import UserError
from longca.cp import ContextParallel
from longca.masks import Mask

VOCABULARY = 61
IGNORED = -100  # the last token of a document has nothing to predict
HEADS_APART: dict[str, ParallelStyle] = {
    **{name: ColwiseParallel() for name in ("q", "k", "v", "up")},
    **{name: RowwiseParallel() for name in ("out", "down")},
}
CHECKPOINTS = {"none": None, "non-reentrant": False, "reentrant": True}


@dataclass(frozen=True)
class Options:
    data: int = 1
    """groups of ranks with different sequences"""
    tensor: int = 1
    """ranks that share the heads of a layer; the other ranks of a group share each sequence"""
    checkpoint: str = "none"
    """activation checkpointing of each block"""
    sequences: int = 4
    """of a step, over all groups: each is a micro-batch"""
    tokens: int = 160
    """of the longest sequence"""
    steps: int = 20
    layers: int = 2
    num_q_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    strategy: str = "auto"
    dtype: str = "float32"
    """of activations; parameters and their gradients are in float32"""
    device: str = "cuda" if torch.cuda.is_available() else "cpu"
    seed: int = 0
    rate: float = 1e-2


@dataclass(frozen=True)
class Sequence:
    """A packed sequence: the same on every rank."""

    documents: tuple[int, ...]
    tokens: Tensor
    labels: Tensor

    @property
    def mask(self) -> Mask:
        return Mask.from_documents(self.documents)


def sequence_of(options: Options, number: int) -> Sequence:
    """Sequence `number` of the training set: documents of 5 to 40 tokens, in all at least half `tokens`."""
    draw = torch.Generator().manual_seed(options.seed * 100_003 + number)
    left = int(torch.randint(math.ceil(options.tokens / 2), options.tokens + 1, (), generator=draw))
    tokens, labels, lengths = [], [], []
    while left:
        lengths.append(min(int(torch.randint(5, 41, (), generator=draw)), left))
        left -= lengths[-1]
        first, pace = (int(torch.randint(1, most, (), generator=draw)) for most in (VOCABULARY, 4))
        document = (first + pace * torch.arange(lengths[-1] + 1)) % VOCABULARY
        tokens.append(document[:-1])
        labels.append(document[1:].clone())
        labels[-1][-1] = IGNORED
    return Sequence(tuple(lengths), torch.cat(tokens), torch.cat(labels))


class Block(nn.Module):
    """Attention and a feed-forward layer, each with its norm. Tensor parallelism leaves a rank some heads."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        width = options.num_q_heads * options.head_dim
        self.head_dim = options.head_dim
        self.reentrant = CHECKPOINTS[options.checkpoint]
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, options.num_kv_heads * options.head_dim, bias=False)
        self.v = nn.Linear(width, options.num_kv_heads * options.head_dim, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, cp: ContextParallel) -> Tensor:
        if self.reentrant is None or not torch.is_grad_enabled():
            return self.layers(x, cp)
        return checkpoint(self.layers, x, cp, use_reentrant=self.reentrant)

    def layers(self, x: Tensor, cp: ContextParallel) -> Tensor:
        normed = self.norms[0](x)
        q, k, v = (layer(normed).unflatten(-1, (-1, self.head_dim)) for layer in (self.q, self.k, self.v))
        q, k = rotated(q, cp.positions), rotated(k, cp.positions)
        x = x + self.out(cp.attention(q, k, v).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Model(nn.Module):
    def __init__(self, options: Options) -> None:
        super().__init__()
        width = options.num_q_heads * options.head_dim
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList([Block(options) for _ in range(options.layers)])
        self.head = nn.Sequential(nn.RMSNorm(width), nn.Linear(width, VOCABULARY, bias=False))

    def forward(self, tokens: Tensor, cp: ContextParallel) -> Tensor:
        """Logits of this rank's tokens."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, cp)
        return self.head(x)


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary position embedding: positions are those of the whole sequence."""
    half = x.shape[-1] // 2
    angle = positions[:, None, None] * 10000.0 ** (-torch.arange(half, device=x.device) / half)
    first, second = x.float().split(half, dim=-1)
    turned = first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()
    return torch.cat(turned, dim=-1).to(x.dtype)


class Training:
    """A model over all ranks, and its optimizer. All ranks call its methods together."""

    def __init__(self, options: Options, mesh: DeviceMesh) -> None:
        """
        Args:
            mesh: (data, context, tensor), with these names.
        """
        self.options = options
        self.group = mesh["data"].get_local_rank()
        shards = mesh["data", "context"]._flatten("shards")  # ranks that have different tokens
        self.shards = shards.get_group()
        torch.manual_seed(options.seed)
        self.model: Any = Model(options).to(mesh.device_type)
        policy = MixedPrecisionPolicy(param_dtype=getattr(torch, options.dtype), reduce_dtype=torch.float32)
        for block in self.model.blocks:
            parallelize_module(block, mesh["tensor"], HEADS_APART)
            fully_shard(block, mesh=shards, mp_policy=policy)
        fully_shard(self.model, mesh=shards, mp_policy=policy)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), options.rate, foreach=False)
        self.cp = longca.context_parallel(
            self.sequences(0)[0].mask,
            mesh["context"],
            options.strategy,
            num_q_heads=options.num_q_heads // options.tensor,
            num_kv_heads=options.num_kv_heads // options.tensor,
            head_dim=options.head_dim,
            dtype=getattr(torch, options.dtype),
        )
        self.waited_ms: list[float] = []

    def sequences(self, step: int) -> list[Sequence]:
        """The micro-batches of this group of ranks."""
        first = step * self.options.sequences
        numbers = range(first + self.group, first + self.options.sequences, self.options.data)
        return [sequence_of(self.options, number) for number in numbers]

    def backward(self, step: int) -> Tensor:
        """Adds up the gradients of a step. Returns its loss, the mean over the labels of all sequences."""
        sequences = self.sequences(step)
        following = [*sequences[1:], self.sequences(step + 1)[0]]
        device = self.cp.positions.device
        labels = sum(int((sequence.labels != IGNORED).sum()) for sequence in sequences)
        num_labels = torch.tensor(float(labels), device=device)
        dist.all_reduce(num_labels, group=self.shards)  # each sequence counts once for each of its ranks
        num_labels /= self.cp.world
        total = torch.zeros((), device=device)
        for sequence, after in zip(sequences, following, strict=True):
            self.cp = self.cp.with_mask(sequence.mask)
            self.waited_ms.append(self.cp.costs["waited_ms"])
            self.cp.plan_ahead(after.mask)  # in the background
            self.model.set_requires_gradient_sync(sequence is sequences[-1])
            tokens, own = (self.cp.shard(x.to(device)) for x in (sequence.tokens, sequence.labels))
            logits = self.model(tokens, self.cp).float()
            loss = F.cross_entropy(logits, own, ignore_index=IGNORED, reduction="sum") / num_labels
            (loss * dist.get_world_size(self.shards)).backward()  # FSDP averages over these ranks
            total += loss.detach()
        dist.all_reduce(total, group=self.shards)
        return total

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def close(self) -> None:
        self.cp.close()


def mesh_of(options: Options) -> DeviceMesh:
    """The mesh of all ranks of torchrun; of this process, if it was started alone."""
    if not dist.is_initialized():  # who began the process group has chosen the device of each rank
        if options.device == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        backends = "cpu:gloo,cuda:nccl" if options.device == "cuda" else "gloo"
        if "WORLD_SIZE" in os.environ:
            dist.init_process_group(backends)
        else:
            store: Any = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
            dist.init_process_group(backends, store=store, rank=0, world_size=1)
    apart = options.data * options.tensor
    if dist.get_world_size() % apart or options.sequences % options.data:
        raise UserError(
            f"{options.data} groups × {options.tensor} ranks of a layer do not fit",
            why=f"there are {dist.get_world_size()} ranks, and {options.sequences} sequences a step",
            todo="Give divisors of both",
        )
    if options.num_kv_heads % options.tensor:
        raise UserError(f"{options.num_kv_heads} KV heads cannot be shared evenly by {options.tensor} ranks")
    shape = options.data, dist.get_world_size() // apart, options.tensor
    return init_device_mesh(options.device, shape, mesh_dim_names=("data", "context", "tensor"))


def train(options: Options, log: Any = None) -> list[float]:
    """Returns the loss of each step. All ranks call it together.

    Args:
        log: called with the first and last loss, on rank 0.
    """
    mesh = mesh_of(options)
    training = Training(options, mesh)
    losses = []
    for step in range(options.steps):
        losses.append(training.backward(step))  # not read before the end: so the host runs ahead of a GPU
        training.update()
    losses = [float(loss) for loss in losses]
    if log is not None and dist.get_rank() == 0:
        waited_ms = sorted(training.waited_ms[1:])
        log(f"loss {losses[0]:.4f} → {losses[-1]:.4f} on {' × '.join(map(str, mesh.shape))} ranks")
        log(f"{training.cp.strategy}; waited {waited_ms[len(waited_ms) // 2]:.1f} ms for the plan of a mask")
    training.close()
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--checkpoint", choices=CHECKPOINTS, default=Options.checkpoint)
    for name, kind in (("data", int), ("tensor", int), ("sequences", int), ("tokens", int), ("steps", int),
                       ("layers", int), ("num_q_heads", int), ("num_kv_heads", int), ("head_dim", int),
                       ("strategy", str), ("dtype", str), ("device", str), ("seed", int),
                       ("rate", float)):  # fmt: skip
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=getattr(Options, name))
    torch.set_num_threads(1)
    try:
        train(Options(**vars(parser.parse_args())), log=print)
    except UserError as error:  # of all ranks alike
        parser.error(str(error))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
