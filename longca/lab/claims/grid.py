"""The study's grid: its kernels, strategies, masks, heads and lengths, and its GPU's memory and peak."""

REGULAR = ("full", "causal", "full_document", "causal_document", "sliding_window", "causal_sliding_window")
HETEROGENEOUS = (
    "shared_question",
    "causal_blockwise",
    "prefix_lm",
    "prefix_lm_document",
    "global_sliding_window",
    "block_causal_document",
)
DENSE = ("naive", "sdpa", "fa2", "fa3", "cudnn_graph", "flex", "flashmask")
"""the study's seven; as its cuDNN, this one keeps its plans"""
STRATEGIES = ("ulysses", "ring_p2p", "ring_allgather", "usp", "loongtrain")  # the study's five
# the study's heads
GQA = "64:8"
MHA = "64:64"
LENGTHS = tuple(1024 * length for length in (1, 2, 4, 8, 16, 24, 32, 40, 48))  # the study's, of dense masks
STUDY_PEAK = 989  # TFLOP/s, of config/hardware.yaml
STUDY_BYTES = 80 << 30  # of the study's GPU: what takes more does not fit there, whatever the GPU here
