"""Studies for a cluster of two cores: one of every stage, and one that leaves time for accidents."""

WHOLE = """
title: every stage
measure: {warmup: 0, warm_seconds: 0, repeats: 3, precision: 0, max_seconds: 1, timeout_s: 60}
grids:
  - kernel: [naive, sdpa]
    mask: [full, causal_document, sliding_window: {window: 16}, block_sparse_uniform: {block: 64, density: 0.5}]
    seqlen: 128
    heads: "4:2"
    head_dim: 16
    dtype: fp32
  - {kind: cp, strategy: ulysses, kernel: naive, world: 2, mask: [causal, prefix_lm_document], seqlen: 128, heads: "4:2", head_dim: 16,
     dtype: fp32}
"""  # noqa: E501

# one repeat: of cells of 22 s four would not fit into the two minutes of a second attempt
ACCIDENTS = """
title: accidents
repeats: {least: 1}
measure: {warmup: 0, warm_seconds: 0, repeats: 3, precision: 0, max_seconds: 1, timeout_s: 300}
grids:
  - {kernel: [naive, slow], mask: [full, causal, prefix_lm, causal_document], seqlen: 64, heads: "2:1", head_dim: 16, dtype: fp32,
     direction: fwd}
"""  # noqa: E501

PLUGINS = {
    "kernels/slow.py": '''
"""Takes its time and memory, as the environment says."""
import os
import time
from longca.kernels.backends.naive import Naive
class Slow(Naive):
    label, summary = "Slow", "waits before it starts"
    def prepare(self, problem):
        seconds = float(os.environ.get("SLOW_SECONDS", "4"))
        time.sleep(seconds / 2)
        self.held = b"x" * int(float(os.environ.get("SLOW_BYTES", "0")))
        time.sleep(seconds / 2)
        return super().prepare(problem)
'''
}

WIDE = """
title: over several nodes
measure: {warmup: 0, warm_seconds: 0, repeats: 3, precision: 0, max_seconds: 1, timeout_s: 120}
grids:
  - {kind: cp, strategy: ulysses, kernel: naive, world: [3, 4], mask: causal_document, seqlen: 192, heads: "12:12", head_dim: 16,
     dtype: fp32}
"""  # noqa: E501

INSIDE = """
title: in an image, on two nodes
measure: {warmup: 0, warm_seconds: 0, repeats: 3, precision: 0, max_seconds: 1, timeout_s: 120}
grids:
  - {kernel: naive, mask: [causal, prefix_lm_document], seqlen: 128, heads: "4:2", head_dim: 16, dtype: fp32}
  - {kind: cp, strategy: [ulysses, ring_p2p], kernel: naive, world: 4, mask: causal_document, seqlen: 192, heads: "12:4", head_dim: 16,
     dtype: fp32}
"""  # noqa: E501
