"""Points of the derived table: their GPU, their seeds and their study."""

from longca.lab.claims.evidence import gpu_note, points
from tests.helpers.claims.cases import REGULAR
from tests.helpers.claims.numbered import CLAIMS
from tests.helpers.claims.verdicts import grid, table


def test_points_name_their_gpu():
    h100, h200, other = (
        {"device": name} for name in ("NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA H100 NVL")
    )

    def told(*groups, **where):
        return [point.where for point in points(table(*groups), **where)]

    fa3 = {"kernel": "fa3"}
    assert told(grid(500, **fa3, **h200)) == ["full 8K fwd 64:8 on H200"]
    assert told(grid(500, **fa3, **h100), grid(500, **fa3, **h200)) == [
        "full 8K fwd 64:8 on H100",
        "full 8K fwd 64:8 on H200",
    ]
    assert told(grid(500, **fa3, **h100), grid(500, kernel="fa2", **h200), kernel="fa2") == [
        "full 8K fwd 64:8 on H200"
    ]
    assert told(grid(500, **fa3, **h100), grid(500, **fa3, **other))[1] == "full 8K fwd 64:8 on H100 NVL"
    ring = {"strategy": "ring_p2p", "kernel": "band", "world": 2}
    assert told(grid(500, **ring, **h200), grid(500, **fa3, **h100), kind="cp") == [
        "full 8K fwd 64:8 on 2 ranks of H200"
    ]
    assert (
        "on H100: 500 on causal_sliding_window, 300 on full"
        in CLAIMS[6]
        .judge(
            table(
                *(
                    grid(rate, kernel="flex", mask=masks, **h100)
                    for rate, masks in ((500, REGULAR[1:]), (300, REGULAR[0]))
                ),
                grid(500, **fa3, **h200),
            )
        )
        .exceptions[0]
    )


def test_points_are_medians_over_seeds_that_are_right():
    records = table(
        *(grid(rate, kernel="fa3", seed=seed) for seed, rate in enumerate((400, 500, 900))),
        grid(None, kernel="fa3", seed=3, status="incorrect"),
        grid(990, kernel="matmul", is_control=True),
        grid(700, kernel="fa2", device_type="cpu"),
        grid(None, kernel="fa2", status="unavailable"),
    )
    (point,) = points(records, ok=False)
    assert (point.rate, len(point.cell_ids), point.where) == (500, 4, "full 8K fwd 64:8 on H200")
    assert not points(records, kernel="fa2") and not points(records, seqlen=lambda length: length > 8192)


def test_of_several_studies_one_counts():
    """That which measured the most methods of the case: a cell that two studies measured is one point of one
    number."""
    few = grid(300, kernel="fa3", study="few", started_at="2026-11-24T00:00:00Z")
    records = table(few, grid(500, kernel=["fa3", "fa2"], study="dense", started_at="2026-11-23T00:00:00Z"))
    (fa3,) = points(records, kernel="fa3")
    assert fa3.rate == 500 and len(fa3.cells) == 1


def test_the_note_says_what_another_gpu_means():
    notes = [
        gpu_note(points(table(grid(500, device=device, peak_tflops=peak))))
        for device, peak in (
            ("NVIDIA H100 80GB HBM3", 989.0),
            ("NVIDIA H200", 989.0),
            ("NVIDIA A100-SXM4-80GB", 312.0),
        )
    ]
    assert notes[0] == "" and "so that rates compare" in notes[1] and "312 and 989" in notes[2]
    assert notes[1].startswith("Measured on NVIDIA H200, the study on H100 80 GB")
    both = [
        *grid(500, device="NVIDIA H100 80GB HBM3", peak_tflops=989.0),
        *grid(500, device="NVIDIA H200", peak_tflops=989.0),
    ]
    assert gpu_note(points(table(both))).startswith(
        "Measured on an H100 as in the study, and on NVIDIA H200: "
    )
