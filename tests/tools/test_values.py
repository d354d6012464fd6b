"""Numbers in prose follow from records, or say why they may stand."""

import re
from pathlib import Path

import pytest
import yaml

from tests.helpers.support import ROOT
from tools import triton_builds
from tools.pages import put
from tools.values import sources
from tools.values.check import REMEDY, of_code, of_page, of_pages, pages
from tools.values.figures import Figures, block
from tools.values.prose import results, results_in_code
from tools.values.quantities import names
from tools.values.statements import REASONS, Sentence, Statements, ValueProblem, load, renewed, unaccounted
from tools.values.suggest import suggestions

STATEMENTS = load()
RESULTS = (
    "band is 1.3 times faster", "it is 30% faster", "thirty percent faster", "takes 3ms", "reaches 700 TFLOP/s",  # noqa: E501
    "It leads in 12 of 24", "under nine of twelve masks", "leads under nine masks", "half the speed", "a third faster",  # noqa: E501
    "twice as fast", "costs 5–8 %", "3,832 records", "1.06 × the next", "a factor of 2", "uses 2 GB less",
)  # fmt: skip
NO_RESULTS = (
    "8K tokens, 64:8 heads, head dim 128", "Triton 3.6 and 3.7", "torch ≥ 2.11", "14 masks on 2 H100s", "one of two ways",  # noqa: E501
    "2 × 2 on 4 ranks", "commit 77b828", "2026-11-26", "`it is 1.3 times faster`",
)  # fmt: skip


def test_every_number_of_the_pages_is_accounted_for_and_right() -> None:
    assert of_pages(STATEMENTS) == [], REMEDY


def test_every_number_of_texts_in_the_code_is_accounted_for() -> None:
    assert of_code(STATEMENTS) == [], REMEDY


@pytest.mark.parametrize(
    "page", ["README.md", "docs/guide/one-gpu.md", "docs/results/h100/band.md", "docs/design/band-tuning.md"]
)
@pytest.mark.parametrize("sentence", ["band is 1.3 times faster.", "On an H100 it leads in 12 of 24 cases."])
def test_a_sentence_that_somebody_adds_is_found(page: str, sentence: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for changed in (f"{text}\n{sentence}\n", text.replace("\n\n", f"\n\n{sentence} ", 1)):
        assert of_page(page, changed, STATEMENTS[page]) != []


def test_a_number_that_somebody_changes_is_found_and_mended() -> None:
    page = "docs/results/h100/kernels.md"
    text = (ROOT / page).read_text(encoding="utf-8")
    changed = re.sub(r"has 1\.\d\d × the speed", "has 1.30 × the speed", text)
    assert changed != text and of_page(page, changed, STATEMENTS[page])
    assert renewed(changed, STATEMENTS[page], names()) == text


@pytest.mark.parametrize("text", RESULTS)
def test_results_are_seen(text: str) -> None:
    assert results(text)


@pytest.mark.parametrize("text", NO_RESULTS)
def test_sizes_versions_and_code_are_no_results(text: str) -> None:
    assert unaccounted(text, Statements()) == []


def test_in_code_only_words_of_comparing_and_taking_count() -> None:
    assert (
        results_in_code("It is 6 % faster.")
        and results_in_code("takes 5 s")
        and results_in_code("twice as fast")
    )
    assert not results_in_code("At most 5 %, within 10 s, of 64 bytes.")


def test_what_a_docstring_quotes_is_an_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    (tmp_path / "longca").mkdir()
    file = tmp_path / "longca/module.py"
    file.write_text(
        '"""Like "1.32× faster".\n\nIt is 5 % faster."""\n\ndef f():\n    """1.5 × faster → 2"""\n'
    )
    assert sources.paths() == [file]
    assert [(line, result.text) for line, _, result in sources.results_of(file)] == [(3, "5 % faster")]


def test_cells_of_tables_count_but_not_their_names() -> None:
    table = "| tokens | band |\n|---|---:|\n| 8 | 700 |\n| 16 | 1.2 / 3 |\n"
    assert [result.text for result in results(table)] == ["700", "1.2 / 3"]


def test_a_number_by_hand_needs_its_day_and_file_beside_it() -> None:
    statements = Statements(stated={"by hand": ("takes 5 s",)})
    with pytest.raises(ValueProblem, match="must name the day or commit"):
        unaccounted("It takes 5 s.\n", statements)
    assert unaccounted("By hand, 2026-11-26, `benchmarks/cp/leaks.py`: it takes 5 s.\n", statements) == []


def test_gpus_share_no_number_and_are_named() -> None:
    def lines(template: str, page: str) -> list[str]:
        return of_page("page.md", page, Statements((Sentence(template),)))

    first = "{h100.cells('h100-dense'):,} records"
    shown = f"{names()['h100'].cells('h100-dense'):,} records"
    assert lines(first, f"# On an H100\n\n{shown}\n") == []
    assert "H100" in lines(first, f"# Kernels\n\n{shown}\n")[0]
    both = "{h100.cells('h100-dense') + h200.cells('h200-dense')} records"
    assert "H100 and H200" in lines(both, "# H100 and H200\n\n5 records\n")[0]


@pytest.mark.parametrize(("template", "message"), [
    ("no number", "computes nothing"), ("{open", "no f-string"), ("{nobody} cells", "NameError"), ("{1 / 0:.1f} cells", "ZeroDivision"),  # noqa: E501
    ("{h100.block('band', 'nothing')} cells", "has no block")])  # fmt: skip
def test_a_statement_that_cannot_be_says_why(template: str, message: str) -> None:
    with pytest.raises(ValueProblem, match=message):
        renewed("5 cells", Statements((Sentence(template),)), names())


def test_a_text_must_be_there_once_outside_of_blocks() -> None:
    sentence = Sentence("{1:d} cells")
    assert sentence.spans("<!-- begin a -->\n5 cells\n<!-- end a -->\n7 cells\n") == [(40, 41)]
    for page in ("nothing", "5 cells, 6 cells"):
        with pytest.raises(ValueProblem, match="must once"):
            sentence.spans(page)


def test_suggested_entries_account_for_what_they_were_made_of() -> None:
    page = "docs/design/masks.md"
    suggested = yaml.safe_load(
        suggestions({name: entry for name, entry in STATEMENTS.items() if name != page})
    )
    assert list(suggested) == [page]
    text = (ROOT / page).read_text(encoding="utf-8")
    assert unaccounted(text, Statements(stated={"setting": tuple(suggested[page]["REASON"])})) == []


def test_figures_show_their_ends() -> None:
    figures = Figures((0.97, 1.0, 1.049))
    assert f"{figures.span:.2f}" == "0.97 to 1.05" and f"{Figures((0.991, 0.992)).span:.2f}" == "0.99"
    assert round(figures.loss.most) == 3 and figures.below(1) == 1


def test_blocks_give_their_cells() -> None:
    table = block("results/h100/band.md", "band_best")
    assert len(table.figures("geometric mean", _="fwd")) == 3
    assert table.figure(3, 1, first="8K", _="bwd") == 12
    with pytest.raises(ValueError, match="no cell of column 'least' has a number"):
        table.figures("least", first="9K")


def test_reasons_are_all_in_use_and_pages_have_no_stale_ones() -> None:
    assert {reason for statements in STATEMENTS.values() for reason in statements.stated} == set(REASONS)
    assert len(pages()) > 40


def test_the_table_of_builds_is_current() -> None:
    page = triton_builds.PAGE.read_text(encoding="utf-8")
    assert page == put(page, "triton_builds", triton_builds.table()), "run `make docs`"
