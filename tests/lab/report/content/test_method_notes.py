"""Descriptions of methods, read without importing them."""

import re

import pytest

from longca.lab.report.content.method_notes import method_notes, packages_of
from longca.lab.report.content.packing import page_data
from longca.lab.report.look.template import code, linked


def test_methods_say_what_they_are_without_being_imported(text):
    section = re.search(r'<section id="methods">.*?</section>', text, re.DOTALL)[0]
    assert 'id="about-sdpa"' in section and "torch.nn.functional.scaled_dot_product_attention" in section
    assert (
        re.search(r'id="about-ulysses".*?All-to-all', section, re.DOTALL) and section.count("All-to-all") == 1
    )
    about = page_data(text, "facts")["about"]
    assert "All-to-all" in about["ulysses+sdpa"] and "scaled_dot_product_attention" in about["ulysses+sdpa"]


@pytest.mark.parametrize(
    ("variant", "method"),
    [
        ("fa3_deterministic", "fa3"),
        ("fa4_deterministic", "fa4"),
        ("cudnn_flex_deterministic", "cudnn_flex"),
        ("cudnn_graph_deterministic", "cudnn_graph"),
        ("as_released_fa3", "fa3"),
        ("band_atomic", "band"),
    ],
)
def test_a_variant_runs_on_the_packages_of_its_method(variant, method) -> None:
    assert packages_of("kernel", variant) == packages_of("kernel", method) != ("torch",)


def test_names_in_summaries_are_code_on_pages_and_plain_in_tips() -> None:
    assert code("`fa3` <as>") == "<code>fa3</code> &lt;as&gt;"
    tips = method_notes([], ["as_released_fa3"]).tips
    assert tips["as_released_fa3"].splitlines()[1].startswith("fa3 as the study timed")


def test_pages_lead_to_the_documents_that_they_name() -> None:
    text = "docs/results/h200/band.md has <numbers>"
    link = '<a href="../../docs/results/h200/band.md">docs/results/h200/band.md</a> has &lt;numbers&gt;'
    assert linked(text, "../../") == link and "<a" not in linked(text, "")


def test_strategies_that_are_packages_name_them() -> None:
    assert packages_of("strategy", "yunchang") == ("yunchang",)
