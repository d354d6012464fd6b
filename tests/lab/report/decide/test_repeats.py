"""Repeats of identical cells are noise, and no cells of a page."""

import pandas as pd

from longca.lab.report.decide.cases import cases
from longca.lab.report.decide.repeats import repeat_rows
from longca.lab.report.series import labelled


def test_a_second_measurement_is_noise_and_no_cell(small):
    again = small.assign(repeat=True, run_id="another", tflops_per_device=small.tflops_per_device * 1.5)
    table = labelled(pd.concat([small.assign(repeat=False), again], ignore_index=True))
    assert len(table) == len(small)
    assert cases(table, "kernel").standings.keys() == cases(small, "kernel").standings.keys()
    (row,) = (
        row
        for row in repeat_rows(table, cases(table, "kernel").standings.values())
        if row.relation == "one device in two runs"
    )
    assert row.own == "0 % of 6" and "of this study" in row.basis, "they widen what is called a tie"
