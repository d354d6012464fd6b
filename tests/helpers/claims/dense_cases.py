"""Made-up records for claims about kernels on one GPU as the study has them: claim → (the verdict, its rows).

Rows are of the study's GPU, and of its masks: `paper_compat` where a pattern has it.
"""

from tests.helpers.claims.cases import (
    BLOCKS_64,
    BLOCKS_128,
    CONTRADICTED,
    EXCEPTIONS,
    HETEROGENEOUS,
    HOLDS,
    LONG,
    OPEN,
    SPARSE_LONG,
    Rows,
    rows,
    sparse,
)
from tests.helpers.claims.verdicts import GIB, grid

H100 = {"device": "NVIDIA H100 80GB HBM3", "peak_tflops": 989.0}
H200 = {"device": "NVIDIA H200"}
DRAWN = "paper_compat=True"
NO_MASK = "as released: no block mask (OutOfMemoryError), so all scores are computed and then hidden"


OTHERS = ["as_released_naive", "as_released_sdpa", "fa2", "cudnn_graph", "flex"]


def own(rate, **fields) -> Rows:
    """Rows of the study's GPU; masks with documents as its code draws them."""
    masks = fields.pop("mask", "full")
    made = []
    for mask in masks if isinstance(masks, list) else [masks]:
        documents = "document" in mask
        params = DRAWN if documents else "window=1024" if mask == "causal_sliding_window" else ""
        for length in (
            fields.get("seqlen") if isinstance(fields.get("seqlen"), list) else [fields.get("seqlen", 8192)]
        ):
            corpus = ("pile" if length <= 12288 else "prolong64k") if documents else ""
            made += grid(
                rate,
                mask=mask,
                **({"mask_params": params, "corpus": corpus} | H100 | fields | {"seqlen": length}),
            )
    return made


def _first(fa3, full=700) -> Rows:
    masks = ["causal", "causal_sliding_window", "full_document"]
    return rows(
        own(fa3, kernel="fa3", mask=masks, seqlen=LONG),
        own(full, kernel="fa3", seqlen=LONG),
        own(600, kernel=OTHERS, mask=["full", *masks], seqlen=LONG),
    )


def _order(cudnn) -> Rows:
    rates = {"fa3": 700, "cudnn_graph": cudnn, "fa2": 400, "flex": 400}
    return rows(*(own(rate, kernel=name, heads=["64:8", "64:64"]) for name, rate in rates.items()))


def _support(status) -> Rows:
    cannot = ["fa2", "fa3", "cudnn_graph"]
    return rows(
        grid(400 if status == "ok" else None, kernel=cannot, mask=HETEROGENEOUS, status=status, **H200),
        grid(400, kernel=["flex", "sdpa", "naive"], mask=HETEROGENEOUS, **H200),
    )


def _backward(whole, documents) -> Rows:
    masks = {"full": whole, "full_document": documents}
    return rows(
        *(own(400, kernel=[*OTHERS, "fa3"], mask=mask, seqlen=LONG) for mask in masks),
        *(
            own(rate, kernel=[*OTHERS, "fa3"], mask=mask, seqlen=LONG, direction="bwd")
            for mask, rate in masks.items()
        ),
    )


def _masks(worst) -> Rows:
    kernels = [*OTHERS, "fa3"]
    documents = ["full_document", "causal_document"]
    window = {"mask": "sliding_window"}
    both_sides = {"mask_params": "window=1024, paper_compat=False"}
    one_side = {"mask_params": f"window=1024, {DRAWN}"}
    # of the pairs of both sides
    density = {length: (2049 - 1024 * 1025 / length) / length for length in LONG}
    return rows(
        own(500, kernel=kernels, mask=["causal", "causal_sliding_window", *documents], seqlen=LONG),
        own(worst, kernel=kernels, seqlen=LONG),
        *(
            own(500, kernel=kernels[2:], seqlen=length, density=density[length], **window, **both_sides)
            for length in LONG
        ),
        own(251, kernel=kernels[:2], seqlen=LONG, **window, **one_side),
    )


def _heads(rate, gib) -> Rows:
    kernels = [*OTHERS, "fa3", "flashinfer"]
    return rows(
        own(500, kernel=kernels, seqlen=LONG, heads="64:64", absolute_peak_bytes=4 * GIB),
        own(rate, kernel=kernels, seqlen=LONG, absolute_peak_bytes=gib * GIB),
    )


def _memory(gib, heads="64:64", **fields) -> Rows:
    lengths = [32768, 40960, 49152, 65536]
    call = {"kernel": "sdpa", "mask": "causal_sliding_window", "seqlen": lengths, "heads": heads}
    return own(50, **(call | {"absolute_peak_bytes": gib * GIB} | fields))


def _flex(**fields) -> Rows:
    setting = H200 | {"absolute_peak_bytes": 3 * GIB, "seqlen": SPARSE_LONG}
    return sparse("as_released_flex", 400, **(setting | fields))


CASES = {
    1: [
        (HOLDS, _first(700)),
        (CONTRADICTED, _first(500)),
        (CONTRADICTED, _first(700, 590)),
        (HOLDS, rows(_first(700), own(900, kernel=["flashmask", "cudnn", "band", "naive"], mask="causal"))),
        (OPEN, [row | H200 for row in _first(700)]),
    ],
    2: [
        (HOLDS, _order(600)),
        (CONTRADICTED, _order(300)),
        (OPEN, [row | H200 for row in _order(600)]),
        (HOLDS, rows(_order(600), own(900, kernel="flashmask"))),
    ],
    3: [(HOLDS, _support("unsupported")), (CONTRADICTED, _support("ok"))],
    4: [
        (
            HOLDS,
            rows(
                _memory(90),
                _memory(90, "64:8", kernel="as_released_sdpa", notes="torch's MATH path"),
                _memory(0, "64:8", kernel="as_released_naive", status="oom"),
            ),
        ),
        (CONTRADICTED, _memory(8)),
        (OPEN, _memory(8, "64:8")),
        (OPEN, _memory(8, "64:8", kernel="as_released_sdpa", notes="torch's CUDNN_ATTENTION path")),
        (CONTRADICTED, _memory(8, "64:8", kernel="as_released_sdpa", notes="torch's MATH path")),
    ],
    5: [
        (HOLDS, _backward(300, 200)),
        (CONTRADICTED, _backward(300, 320)),
        (CONTRADICTED, _backward(420, 300)),
        (OPEN, [row | {"kernel": "flashmask"} for row in _backward(300, 200)]),
    ],
    6: [(HOLDS, _masks(600)), (CONTRADICTED, _masks(300)), (OPEN, _masks(600)[len(LONG) :])],
    7: [
        (
            OPEN,
            rows(
                grid(900, kernel="flashmask", mask="prefix_lm", **H100),
                grid(400, kernel="flex", mask="prefix_lm", **H100),
            ),
        )
    ],
    9: [
        (
            OPEN,
            rows(
                sparse("flashinfer", 600, BLOCKS_128, **H100), sparse("fa2_sparse", 500, BLOCKS_128, **H100)
            ),
        )
    ],
    12: [
        (HOLDS, _heads(480, 3)),
        (CONTRADICTED, _heads(400, 3)),
        (CONTRADICTED, _heads(480, 5)),
        (
            HOLDS,
            rows(
                _heads(480, 3),
                own(300, kernel="sdpa", mask="causal_sliding_window"),
                own(500, kernel="sdpa", mask="causal_sliding_window", heads="64:64"),
            ),
        ),
    ],
    13: [
        (HOLDS, _flex(notes=NO_MASK)),
        (CONTRADICTED, _flex(notes="as released: the block mask is made eagerly")),
        (OPEN, sparse("flex", 400, BLOCKS_64, absolute_peak_bytes=9 * GIB, seqlen=SPARSE_LONG, **H100)),
        (OPEN, _flex(notes=NO_MASK, seqlen=[32768, 65536])),
        (CONTRADICTED, _flex(notes=NO_MASK.replace("OutOfMemoryError", "RuntimeError"))),
        (
            EXCEPTIONS,
            rows(
                _flex(notes=NO_MASK, seqlen=[32768, 65536, 98304]), _flex(notes="made eagerly", seqlen=131072)
            ),
        ),
    ],
}
