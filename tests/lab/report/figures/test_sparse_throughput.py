"""The figure over density, and the length at which it is drawn."""

from longca.core.plugin import Registry
from longca.lab.store.table import derived
from tests.helpers.records import quick_study


def test_a_density_axis(quick):
    data = Registry("figure").load("sparse_throughput").data(quick)
    assert sorted(set(data.density)) == [0.2, 0.5] and set(data.seqlen) == {2048}


def test_densities_are_drawn_where_they_were_measured():
    """The longest length may have been measured at one density alone."""
    chosen = [
        entry
        for entry in quick_study()
        if entry.cell.mask == "block_sparse_uniform" and entry.outcome.status == "ok"
    ]
    chosen = [
        entry for entry in chosen if entry.cell.seqlen == 1024 or entry.cell.mask_params["density"] == 0.2
    ]
    data = Registry("figure").load("sparse_throughput").data(derived(chosen))
    assert sorted(set(data.density)) == [0.2, 0.5] and set(data.seqlen) == {1024}
    assert "at 1K" in Registry("figure").load("sparse_throughput").title(data)
