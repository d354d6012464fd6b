"""The figure of memory: the place at which methods are compared."""

from longca.core.plugin import Registry
from longca.lab.store.table import derived
from tests.helpers.records import gpu_study


def test_memory_is_compared_where_the_most_methods_ran():
    ran = {
        "sdpa": ("full",),
        "flex": ("causal", "prefix_lm"),
        "flashmask": ("causal", "prefix_lm", "shared_question"),
    }
    chosen = [
        entry
        for entry in gpu_study()
        if entry.cell.num_kv_heads == 8
        and entry.cell.direction == "fwd"
        and entry.cell.mask in ran.get(entry.cell.kernel, ())
    ]
    figure = Registry("figure").load("memory")
    title = figure.title(figure.data(derived(chosen)))
    assert (
        "flex" in title
        and "flashmask" in title
        and "sdpa" not in title
        and "(prefix_lm · forward · 32K)" in title
    ), title
