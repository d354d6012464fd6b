"""Labels of masks and settings, their order, and units of rates."""

from longca.lab.report.look.labels import short_labels
from longca.lab.report.series import labelled, mask_order, rate_unit
from longca.lab.store.table import derived
from tests.helpers.records import quick_study, record
from tests.helpers.report.cases import cell


def test_masks_that_differ_in_parameters_have_labels_that_say_so():
    table = labelled(
        derived(
            [record(cell(mask="sliding_window", mask_params={"window": window})) for window in (128, 256)]
            + [record(cell(mask="global_sliding_window", mask_params={"window": 64, "num_global": 2}))]
        )
    )
    assert list(table.mask_label) == [
        "sliding_window · window 128",
        "sliding_window · window 256",
        "global_sliding_window",
    ]


def test_masks_of_the_released_code_stand_after_the_others_and_windows_are_lengths():
    params = [
        {"window": window, "paper_compat": compat} for compat in (True, False) for window in (4096, 512)
    ]
    records = [record(cell(mask="sliding_window", mask_params=one)) for one in params]
    assert mask_order(labelled(derived(records))) == [
        "sliding_window · window 512",
        "sliding_window · window 4K",
        "sliding_window · window 512 · paper compat",
        "sliding_window · window 4K · paper compat",
    ]


def test_masks_stand_from_dense_to_sparse_family_by_family():
    order = mask_order(labelled(derived(quick_study())))
    assert order[:2] == ["full", "prefix_lm"] and order[-3:] == [
        "block_sparse_variable",
        "block_sparse_uniform · density 0.5",
        "block_sparse_uniform · density 0.2",
    ]
    assert order.index("causal") < order.index("full_document")


def test_block_masks_stand_by_the_density_asked_then_by_block():
    """Whatever densities came out: that of the smaller blocks is nearer to what was asked."""
    asked = [(block, density) for density in (0.2, 0.8) for block in (128, 64)]
    records = [
        record(cell(mask="block_sparse_uniform", mask_params={"block": block, "density": density}))
        for block, density in asked
    ]
    assert mask_order(labelled(derived(records))) == [
        f"block_sparse_uniform · block {block} · density {density}"
        for density in (0.8, 0.2)
        for block in (64, 128)
    ]


def test_rates_have_few_digits():
    assert rate_unit(0.06).text(0.0613) == "61.3 GFLOP/s" and rate_unit(600.0).span(5.0, 612.3) == "5.00–612"


def test_titles_have_short_names_of_gpus_where_these_stay_distinct():
    label = "paper compat · NVIDIA H100 80GB HBM3"
    assert short_labels([label, "NVIDIA H200"]) == {label: "paper compat · H100", "NVIDIA H200": "H200"}
    both = ["NVIDIA H100 80GB HBM3", "NVIDIA H100 96GB HBM3"]
    assert short_labels(both) == {name: name for name in both}
