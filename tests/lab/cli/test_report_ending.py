"""Output of a report on the terminal."""

import pandas as pd

from longca.lab.cli.report import controls_text


def controls(*rows: tuple[str, str, float | None, float | None]) -> pd.DataFrame:
    """Rows of (method, status, median ms, nominal ms)."""
    table = pd.DataFrame(rows, columns=["method", "status", "time_ms_median", "nominal_ms"])
    return table.assign(is_control=True, device="GPU", seqlen=range(len(rows)))


def test_the_controls_have_a_verdict_with_their_largest_error():
    passed = controls(
        ("control", "ok", 1.005, 1.0), ("control", "ok", 1.98, 2.0), ("matmul", "ok", 3.0, None)
    )
    text = controls_text(passed)
    assert text == "Controls: all 3 passed; 2 calls of known length timed within 1 %."
    failed = controls(
        ("control", "incorrect", 1.3, 1.0), ("control", "ok", 1.0, 1.0), ("matmul", "oom", None, None)
    )
    text = controls_text(failed)
    assert text.startswith("Controls: 2 of 3 failed (control incorrect, matmul oom).")
    assert controls_text(passed.assign(is_control=False, nominal_ms=float("nan"))) == ""
