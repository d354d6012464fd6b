"""Made-up records for each of the study's claims: claim → (the verdict that they must give, their rows)."""

from typing import Any

from tests.helpers.claims.verdicts import GIB, grid

Rows = list[dict[str, Any]]

BLOCKS_64 = "block=64, density=0.5, scores=random"
BLOCKS_128 = "block=128, density=0.5, scores=random"
HETEROGENEOUS = [
    "shared_question",
    "causal_blockwise",
    "prefix_lm",
    "prefix_lm_document",
    "global_sliding_window",
    "block_causal_document",
]
REGULAR = ["full", "causal", "full_document", "causal_document", "sliding_window", "causal_sliding_window"]
LONG = [8192, 16384, 24576, 32768]
SPARSE_LONG = [32768, 65536, 98304, 131072]
DENSE = ["naive", "sdpa", "fa2", "fa3", "cudnn_graph", "flex", "flashmask"]
STRATEGIES = ["ulysses", "ring_p2p", "ring_allgather", "usp", "loongtrain"]
WHOLE = ["full", "causal"]
DOCUMENTS = ["full_document", "causal_document"]
BOTH = ["fwd", "bwd"]


def rows(*groups: Rows) -> Rows:
    return [row for group in groups for row in group]


def sparse(kernel, rate, params=BLOCKS_64, **fields):
    return grid(
        rate,
        kernel=kernel,
        mask="block_sparse_uniform",
        mask_params=params,
        **({"seqlen": 32768, "heads": "64:64"} | fields),
    )


def cp(strategy, rate, world=4, num_nodes=1, **fields):
    setting = {
        "kernel": "band",
        "world": world,
        "num_nodes": num_nodes,
        "seqlen": 8192 * world,
        "mask": "full",
    }
    return grid(rate, strategy=strategy, **(setting | fields))


def _fa3_fastest(fa3, full=700):
    return rows(
        grid(fa3, kernel="fa3", mask=REGULAR[1:], seqlen=LONG),
        grid(full, kernel="fa3", mask="full", seqlen=LONG),
        grid(600, kernel=[*(name for name in DENSE if name != "fa3"), "cudnn"], mask=REGULAR, seqlen=LONG),
    )


def _order(cudnn):
    heads = ["64:8", "64:64"]
    return rows(
        grid(700, kernel="fa3", heads=heads),
        grid(cudnn, kernel=["cudnn", "cudnn_graph"], heads=heads),
        grid(400, kernel=["fa2", "flex", "flashmask"], heads=heads),
    )


def _support(status, mask):
    others = [entry for entry in HETEROGENEOUS if entry != mask]
    return rows(
        grid(None, kernel=["fa2", "fa3", "cudnn"], mask=others, status="unsupported"),
        grid(400, kernel=["fa2", "fa3", "cudnn"], mask=mask, status=status),
        grid(400, kernel=["flex", "naive", "sdpa", "flashmask"], mask=HETEROGENEOUS),
    )


def _memory(status, gib):
    return rows(
        grid(
            50,
            kernel=["sdpa", "naive"],
            mask=HETEROGENEOUS,
            seqlen=32768,
            status=status,
            absolute_peak_bytes=gib and gib * GIB,
        )
    )


def _backward(whole, documents, kernel=tuple(DENSE)):
    masks = {"full": whole, "full_document": documents}
    return rows(
        *(grid(400, kernel=list(kernel), mask=mask, seqlen=LONG) for mask in masks),
        *(
            grid(rate, kernel=list(kernel), mask=mask, seqlen=LONG, direction="bwd")
            for mask, rate in masks.items()
        ),
    )


def _masks(worst):
    return rows(
        grid(500, kernel=DENSE, mask=REGULAR[1:], seqlen=LONG),
        grid(worst, kernel=DENSE, mask="full", seqlen=LONG),
    )


def _heads(rate, gib):
    kernels = [*DENSE, "fa2_sparse", "flashinfer"]
    return rows(
        grid(500, kernel=kernels, seqlen=LONG, heads="64:64", absolute_peak_bytes=4 * GIB),
        grid(rate, kernel=kernels, seqlen=LONG, absolute_peak_bytes=gib * GIB),
    )


def _flashmask(rate, masks=tuple(HETEROGENEOUS)):
    return rows(
        grid(rate, kernel="flashmask", mask=list(masks), direction=BOTH),
        grid(400, kernel="flex", mask=HETEROGENEOUS, direction=BOTH),
        grid(
            500,
            kernel="flashmask",
            mask=[mask for mask in HETEROGENEOUS if mask not in masks],
            direction=BOTH,
        ),
    )


def _hybrids(few, many, num_nodes=4):
    worlds = ((4, 1, few), (32, num_nodes, many))
    return rows(
        *(
            cp(["usp", "loongtrain"], rate, world, nodes, mask="full_document", direction=BOTH)
            for world, nodes, rate in worlds
        ),
        *(
            cp(["ulysses", "ring_p2p"], 400, world, nodes, mask="full_document", direction=BOTH)
            for world, nodes, _ in worlds
        ),
    )


def _ring(rate, documents=200, num_nodes=4):
    worlds = ((4, 1), (32, num_nodes))
    return rows(
        *(cp("ring_p2p", rate, world, nodes, direction=BOTH) for world, nodes in worlds),
        *(
            cp([name for name in STRATEGIES if name != "ring_p2p"], 500, *both, direction=BOTH)
            for both in worlds
        ),
        cp("ring_p2p", 400, 4, mask="full_document", direction=BOTH),
        cp("ring_p2p", documents, 32, num_nodes, mask="full_document", direction=BOTH),
    )


def _ulysses(late, status):
    return rows(
        cp("ulysses", 500, 16, 2, straggler_percent=late, mask=WHOLE + DOCUMENTS),
        cp("ulysses", 500, world=96, num_nodes=12, status=status, mask=WHOLE + DOCUMENTS),
    )


def _loongtrain(forward, backward, world=32):
    masks = {"world": world, "num_nodes": world // 8 or 1, "mask": WHOLE + DOCUMENTS}
    return rows(
        cp("loongtrain", forward, **masks),
        cp("loongtrain", backward, direction="bwd", **masks),
        cp("usp", 500, direction=["fwd", "bwd"], **masks),
    )


def _volume(under_mask):
    return rows(
        cp("ring_p2p", 500, moved_bytes=1000),
        cp("ring_p2p", 500, moved_bytes=under_mask, mask=["causal", "prefix_lm", *DOCUMENTS]),
    )


def _formula(moved, copied=None):
    bytes_ = {"moved_bytes": moved, "formula_bytes": 1000.0, "formula_replicated_bytes": copied}
    return rows(cp(["ulysses", "usp", "ring_p2p"], 500, mask=WHOLE + DOCUMENTS, **bytes_))


def _over_ranks(rate, num_nodes=4):
    cases = {"mask": WHOLE, "direction": BOTH}
    return rows(cp(STRATEGIES, 500, 4, **cases), cp(STRATEGIES, rate, 32, num_nodes, **cases))


def _documents(rate):
    return rows(
        cp(STRATEGIES, 600, mask=WHOLE, direction=BOTH), cp(STRATEGIES, rate, mask=DOCUMENTS, direction=BOTH)
    )


def _error(ring):
    masks = WHOLE + DOCUMENTS
    gradients = ("error_dq", "error_dk", "error_dv")
    return rows(
        cp("ring_p2p", 500, error_out=ring, mask=masks),
        cp("ulysses", 500, error_out=0.002, mask=masks),
        cp("ring_p2p", 500, direction="bwd", mask=masks, **dict.fromkeys(gradients, ring)),
        cp("ulysses", 500, direction="bwd", mask=masks, **dict.fromkeys(gradients, 0.002)),
    )


def _vsa(flashinfer):
    return rows(
        sparse("vsa", 600, seqlen=SPARSE_LONG),
        sparse("vsa_triton", 500, seqlen=SPARSE_LONG),
        sparse("flashinfer", flashinfer, seqlen=SPARSE_LONG),
    )


def _blocks_128(other, rate):
    return rows(
        sparse("flashinfer", 600, BLOCKS_128, seqlen=SPARSE_LONG),
        sparse(other, rate, BLOCKS_64 if other == "flashinfer" else BLOCKS_128, seqlen=SPARSE_LONG),
    )


def _sparse_backward(rate):
    kernels = ["vsa", "vsa_triton"]
    return rows(
        sparse(kernels, 500, seqlen=SPARSE_LONG), sparse(kernels, rate, seqlen=SPARSE_LONG, direction="bwd")
    )


def densities(status, *, of=("64:8", "64:64"), densest=None, **fields) -> Rows:
    """FlashInfer at three densities of each length from 64K; the densest has another status."""
    setting = {"heads": list(of), "seqlen": SPARSE_LONG[1:]}
    made = {0.2: "ok", 0.5: "ok", 0.8: status}
    return rows(
        *(
            sparse(
                "flashinfer",
                300 if got == "ok" else None,
                f"block=64, density={density}, scores=random",
                status=got,
                absolute_peak_bytes=9 * GIB if got == "ok" else None,
                **(setting | fields | ({"reason": densest} if got != "ok" and densest else {})),
            )
            for density, got in made.items()
        )
    )


HOLDS = "holds"
EXCEPTIONS = "holds with exceptions"
CONTRADICTED = "contradicted"
OPEN = "open"
CASES = {
    1: [
        (HOLDS, _fa3_fastest(700)),
        (HOLDS, _fa3_fastest(595)),
        (CONTRADICTED, _fa3_fastest(500)),
        (CONTRADICTED, _fa3_fastest(700, 590)),
    ],
    2: [(HOLDS, _order(600)), (CONTRADICTED, _order(400)), (CONTRADICTED, _order(695))],
    3: [
        (HOLDS, _support("unsupported", "prefix_lm")),
        (EXCEPTIONS, _support("ok", "prefix_lm")),
        (CONTRADICTED, rows(grid(400, kernel=["fa3", "flex"], mask=HETEROGENEOUS))),
    ],
    4: [(HOLDS, _memory("oom", None)), (HOLDS, _memory("ok", 100)), (CONTRADICTED, _memory("ok", 8))],
    5: [
        (HOLDS, _backward(300, 200)),
        (CONTRADICTED, _backward(300, 320)),
        (CONTRADICTED, _backward(420, 300)),
    ],
    6: [(HOLDS, _masks(200)), (CONTRADICTED, _masks(300))],
    7: [
        (HOLDS, _flashmask(500)),
        (EXCEPTIONS, _flashmask(401, ("prefix_lm",))),
        (CONTRADICTED, _flashmask(300)),
    ],
    8: [(HOLDS, _vsa(400)), (CONTRADICTED, _vsa(495)), (OPEN, rows(sparse("vsa", 600, seqlen=SPARSE_LONG)))],
    9: [(HOLDS, _blocks_128("fa2_sparse", 500)), (CONTRADICTED, _blocks_128("fa2_sparse", 605))],
    10: [
        (HOLDS, _blocks_128("flashinfer", 320)),
        (CONTRADICTED, _blocks_128("flashinfer", 480)),
        (OPEN, sparse("flashinfer", 500, BLOCKS_128, seqlen=SPARSE_LONG)),
    ],
    11: [(HOLDS, _sparse_backward(300)), (CONTRADICTED, _sparse_backward(450))],
    12: [(HOLDS, _heads(480, 3)), (CONTRADICTED, _heads(400, 3)), (CONTRADICTED, _heads(480, 5))],
    13: [
        (HOLDS, sparse("flex", None, status="oom", seqlen=SPARSE_LONG)),
        (HOLDS, sparse("flex", 400, absolute_peak_bytes=90 * GIB, seqlen=SPARSE_LONG)),
        (CONTRADICTED, sparse("flex", 400, absolute_peak_bytes=9 * GIB, seqlen=SPARSE_LONG)),
        (OPEN, sparse("flex", None, status="error", reason="a fault", seqlen=SPARSE_LONG)),
    ],
    14: [
        (HOLDS, densities("oom")),
        (CONTRADICTED, densities("ok")),
        (OPEN, densities("unsupported", densest="12 indices do not fit")),
    ],
    15: [
        (HOLDS, _hybrids(410, 480)),
        (CONTRADICTED, _hybrids(410, 350)),
        (CONTRADICTED, _hybrids(480, 410)),
        (OPEN, _hybrids(410, 350, 1)),
    ],
    16: [
        (HOLDS, _ring(500)),
        (CONTRADICTED, _ring(400)),
        (CONTRADICTED, _ring(500, 390)),
        (OPEN, _ring(500, 390, num_nodes=1)),
    ],
    17: [
        (HOLDS, _ulysses(0.5, "unsupported")),
        (CONTRADICTED, _ulysses(9.0, "unsupported")),
        (CONTRADICTED, _ulysses(0.5, "ok")),
        (OPEN, cp("ulysses", 500, straggler_percent=9.0, mask=WHOLE + DOCUMENTS)),
    ],
    18: [
        (HOLDS, _loongtrain(550, 500)),
        (CONTRADICTED, _loongtrain(500, 500)),
        (CONTRADICTED, _loongtrain(550, 550)),
        (OPEN, _loongtrain(550, 500, world=8)),
    ],
    19: [(HOLDS, _volume(1004)), (CONTRADICTED, _volume(700))],
    20: [(HOLDS, _formula(1000.0)), (HOLDS, _formula(2000.0, 2000.0)), (CONTRADICTED, _formula(900.0))],
    21: [(HOLDS, _over_ranks(480)), (CONTRADICTED, _over_ranks(400)), (OPEN, _over_ranks(400, num_nodes=1))],
    22: [(HOLDS, _documents(300)), (CONTRADICTED, _documents(500))],
    23: [(HOLDS, _error(0.0025)), (CONTRADICTED, _error(0.002))],
}
