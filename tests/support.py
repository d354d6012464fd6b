"""A tiny study that has every stage, for tests of the command line and of the workflow."""

from pathlib import Path

from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]

TINY = """
title: tiny
measure: {warmup: 0, repeats: 3, max_seconds: 1, timeout_s: 60}
grids:
  - {kernel: [naive, sdpa], mask: [full, causal_document], seqlen: 64, heads: "2:1", head_dim: 16, dtype: fp32, direction: [fwd, bwd]}
  - {kind: cp, strategy: ulysses, kernel: naive, world: 2, mask: causal, seqlen: 64, heads: "2:1", head_dim: 16, dtype: fp32,
     direction: fwd}
"""



def examples(whole: int) -> settings:
    """That many random cases in `make test-all`, and a part of them in the default run, at least 4. The profile says how large a part."""
    return settings(max_examples=max(4, whole * settings.default.max_examples // 100), deadline=None)
