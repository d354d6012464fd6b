"""Cells of packages that bring their own rings over `flash_attn`, and what refuses them."""

from longca.core.plugin import Registry
from longca.lab.studies.cell import Cell
from longca.masks.build import build_mask
from tests.helpers.cp.case import STATIC_MASKS

WORLD = 4
MASKS = {
    "ring_flash_attn": ("full", "causal", "full_document", "causal_document", "causal_sliding_window"),
    "yunchang": ("full", "causal"),
}


def cell(strategy: str, mask: str, **changes: object) -> Cell:
    fields = {
        "kind": "cp",
        "kernel": "torch_flash",
        "strategy": strategy,
        "world": WORLD,
        "mask": mask,
        "seqlen": 128,
        "num_q_heads": 8,
        "num_kv_heads": 4,
        "head_dim": 64,
        "dtype": "bf16",
        "direction": "bwd",
    }
    return Cell(**fields | changes)


def refusal(wanted: Cell) -> str | None:
    mask = build_mask(
        wanted.mask,
        seqlen=wanted.seqlen,
        num_kv_heads=wanted.num_kv_heads,
        **STATIC_MASKS.get(wanted.mask, {}),
    )
    strategy = Registry("strategy").load(wanted.strategy)
    kernel = Registry("kernel").load(wanted.kernel)
    return strategy.refusal(mask, wanted.call_spec, wanted.world, kernel, "cuda")
