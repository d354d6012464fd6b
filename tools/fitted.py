"""Writes longca/predict/fitted.json, by which calls are predicted, from the committed records of one device.

    python -m tools.fitted
"""

from __future__ import annotations

from longca.predict.fitted import FILE, FittedKernels, fit_records
from longca.store.load import load
from tools.pages import ROOT

RECORDS = ("h200-dense", "h200-sparse", "h200-cp")


def content() -> FittedKernels:
    """The models of all kernels."""
    return fit_records(load(*(ROOT / f"reports/h200/{name}.parquet" for name in RECORDS)).records, RECORDS)


if __name__ == "__main__":
    FILE.write_text(content().text(), encoding="utf-8")
