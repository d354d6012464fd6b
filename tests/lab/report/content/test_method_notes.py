"""Descriptions of methods, read without importing them."""

import re

from longca.lab.report.content.method_notes import packages_of
from longca.lab.report.content.packing import page_data


def test_methods_say_what_they_are_without_being_imported(text):
    section = re.search(r'<section id="methods">.*?</section>', text, re.DOTALL)[0]
    assert 'id="about-sdpa"' in section and "torch.nn.functional.scaled_dot_product_attention" in section
    assert (
        re.search(r'id="about-ulysses".*?All-to-all', section, re.DOTALL) and section.count("All-to-all") == 1
    )
    about = page_data(text, "facts")["about"]
    assert "All-to-all" in about["ulysses+sdpa"] and "scaled_dot_product_attention" in about["ulysses+sdpa"]


def test_strategies_that_are_packages_name_them() -> None:
    assert packages_of("strategy", "yunchang") == ("yunchang",)
