"""Trains a small model of Transformers on packed documents with longca's attention, on one rank or on many.

    python examples/finetune_packed.py                                                 # alone
    torchrun --nproc-per-node 2 examples/finetune_packed.py                            # one sequence over two ranks
    torchrun --nproc-per-node 4 examples/finetune_packed.py --fsdp --tensor-parallel 2 # FSDP2 x TP x CP

Each step packs new documents into one row, as TRL's packing does: without padding, with positions that
restart, and no label at the first token of a document. So its mask is new, too: on several ranks a background
thread plans it while the step before is computed. Documents are arithmetic progressions of tokens, whose pace
attention must find. At the end one document is changed, and the outputs of all others are compared, bit by bit.
Where there are GPUs, it uses them.
"""  # noqa: E501

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)
from transformers import AutoModelForCausalLM, DataCollatorWithFlattening, LlamaConfig

import longca.transformers

VOCABULARY = 61


@dataclass(frozen=True)
class Options:
    tokens: int = 512
    steps: int = 40
    layers: int = 2
    seed: int = 0
    rate: float = 1e-2
    strategy: str = "auto"
    fsdp: bool = False
    """shards parameters over the ranks of the sequence"""
    tensor_parallel: int = 1
    """ranks that share the heads of a layer"""
    device: str = "cuda" if torch.cuda.is_available() else "cpu"


def batch_of(options: Options, step: int) -> dict[str, Any]:
    """Documents of 8 to 64 tokens in one row: ids, labels, and positions that restart at each document."""
    draw = torch.Generator().manual_seed(options.seed * 100_003 + step)
    documents = []
    left = options.tokens
    while left:
        length = min(int(torch.randint(8, 65, (), generator=draw)), left)
        first, pace = (int(torch.randint(1, most, (), generator=draw)) for most in (VOCABULARY, 4))
        documents.append({"input_ids": ((first + pace * torch.arange(length)) % VOCABULARY).tolist()})
        left -= length
    packed: Any = DataCollatorWithFlattening(return_tensors="pt")(documents)
    tensors = {name: packed[name].to(options.device) for name in ("input_ids", "labels", "position_ids")}
    return tensors | {"use_cache": False}


def model_of(options: Options) -> Any:
    torch.manual_seed(options.seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=options.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return AutoModelForCausalLM.from_config(config, attn_implementation="longca").float().to(options.device)


def distribute(model: Any, options: Options) -> longca.transformers.ShardedModel | None:
    """Divides heads, sequence and parameters over the ranks of torchrun; None for a process alone."""
    if "WORLD_SIZE" in os.environ and not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if options.device == "cuda" else "gloo")
    world = dist.get_world_size() if dist.is_initialized() else 1
    if world == 1:
        return None
    parts = options.tensor_parallel
    mesh = init_device_mesh(options.device, (world // parts, parts), mesh_dim_names=("cp", "tp"))
    if parts > 1:
        divide_heads(model, mesh["tp"])
    if options.fsdp:
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh["cp"])
        fully_shard(model, mesh=mesh["cp"])
    return longca.transformers.shard(
        model,
        mesh["cp"],
        strategy=options.strategy,
        reduce_gradients=not options.fsdp,  # FSDP averages them itself
        num_q_heads=model.config.num_attention_heads // parts,
        num_kv_heads=model.config.num_key_value_heads // parts,
    )


def divide_heads(model: Any, mesh: DeviceMesh) -> None:
    """Tensor parallelism: each rank has some heads and a part of each feed-forward layer."""
    columns = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
    plan: dict[str, ParallelStyle] = {name: ColwiseParallel() for name in columns}
    plan |= {name: RowwiseParallel() for name in ("self_attn.o_proj", "mlp.down_proj")}
    for layer in model.model.layers:
        parallelize_module(layer, mesh, plan)


def train(options: Options, log: Any = print) -> list[float]:
    """The loss of each step. All ranks call it together."""
    model = model_of(options).train()
    sharding = distribute(model, options)
    optimizer = torch.optim.AdamW(model.parameters(), options.rate, foreach=False)
    losses = []
    waited_ms = []
    for step in range(options.steps):
        if sharding is not None:
            sharding.plan_ahead(**batch_of(options, step + 1))  # in the background
        loss = model(**batch_of(options, step)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        if sharding is not None and step:
            waited_ms.append(sharding.context.costs["waited_ms"])
    changed, others = leaks(model, options, sharding)
    if sharding is None or dist.get_rank() == 0:
        ranks = (
            "one rank" if sharding is None else f"{sharding.context.world} ranks, {sharding.context.strategy}"
        )
        log(f"loss {losses[0]:.4f} → {losses[-1]:.4f} on {ranks}")
        if waited_ms:
            log(f"waited {sorted(waited_ms)[len(waited_ms) // 2]:.1f} ms a step for plans of new masks")
        log(
            f"one document changed: {changed} of its tokens have other outputs, and {others} of other "
            f"documents"
        )
    if sharding is not None:
        sharding.close()
    return losses


@torch.no_grad()
def leaks(model: Any, options: Options, sharding: longca.transformers.ShardedModel | None) -> tuple[int, int]:
    """The numbers of outputs that change with the first document: its own, and those of others."""
    batch = batch_of(options, 0)
    starts = (batch["position_ids"][0] == 0).nonzero()[:, 0].tolist()
    end = [*starts[1:], options.tokens][0]
    outputs = []
    for _ in range(2):
        logits = model(**batch).logits
        outputs.append(logits[0] if sharding is None else sharding.unshard(logits))
        batch["input_ids"] = batch["input_ids"].clone()
        batch["input_ids"][0, :end] = (batch["input_ids"][0, :end] + 1) % VOCABULARY
    differs = (outputs[0] != outputs[1]).any(-1)
    return int(differs[:end].sum()), int(differs[end:].sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--fsdp", action="store_true", help="shards parameters, too")
    for name, kind in (("tokens", int), ("steps", int), ("layers", int), ("seed", int), ("rate", float),
                       ("strategy", str), ("tensor_parallel", int), ("device", str)):  # fmt: skip
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=getattr(Options, name))
    torch.set_num_threads(1)
    options = Options(**vars(parser.parse_args()))
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    train(options)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
