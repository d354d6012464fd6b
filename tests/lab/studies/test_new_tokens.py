"""Cells of new tokens after a context: what is refused, their ids, their masks, and how a study asks for
them."""

import pytest
from pydantic import ValidationError

from longca.core.errors import UserError
from longca.lab.studies.cell import Cell
from longca.lab.studies.masks import cell_mask
from longca.lab.studies.record import MaskFacts
from longca.lab.studies.select import Selection
from longca.lab.studies.study import Study, load_study
from longca.masks import build_mask
from tests.helpers.records import record
from tests.lab.studies.test_cell import CP, KERNEL

GRID = {
    "kernel": "naive",
    "mask": ["causal", "speculative_tree"],
    "seqlen": ["8K", "32K"],
    "new_tokens": [16, "1K"],
    "heads": "4:2",
    "direction": "fwd",
}


def test_a_square_cell_has_the_text_that_it_had_and_so_its_id():
    square = Cell(**KERNEL)
    assert "new_tokens" not in square.model_dump() and "new_tokens" not in square.mask_key
    assert Cell(**{**KERNEL, "new_tokens": None}) == square


def test_new_tokens_are_another_cell_with_another_mask_and_less_work():
    square, chunk = Cell(**KERNEL), Cell(**{**KERNEL, "new_tokens": 1024})
    assert chunk.cell_id != square.cell_id != Cell(**{**KERNEL, "new_tokens": 512}).cell_id
    assert Cell.model_validate_json(chunk.model_dump_json()) == chunk
    assert "S=8192 new=1024" in chunk.title
    assert (chunk.num_queries, chunk.num_pairs) == (1024, 1024 * 8192)
    assert (square.num_queries, square.num_pairs) == (8192, 8192**2)
    whole, mask = cell_mask(square), cell_mask(chunk)
    assert mask == whole.crop((8192 - 1024, 8192), (0, 8192))
    assert chunk.flops(mask.area, 1) < square.flops(whole.area, 1)


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (1, "1 new token would be decoding, which is not measured"),
        (0, "greater than or equal to 1"),
        (8192, "no end of a longer sequence"),
        (9000, "no end of a longer sequence"),
    ],
)
def test_decoding_and_whole_sequences_are_refused(count, message):
    with pytest.raises(ValidationError, match=message):
        Cell(**{**KERNEL, "new_tokens": count})


def test_a_grid_asks_for_each_number_after_each_length():
    cells = Study.model_validate({"grids": [GRID]}).cells()
    assert {(cell.mask, cell.seqlen, cell.new_tokens) for cell in cells} == {
        (mask, seqlen, count)
        for mask in ("causal", "speculative_tree")
        for seqlen in (8192, 32768)
        for count in (16, 1024)
    }
    assert len(Selection(new_tokens="1K").apply(cells)) == 4
    assert {cell.new_tokens for cell in Selection(new_tokens="2..64").apply(cells)} == {16}
    with pytest.raises(UserError, match="no cell passes new_tokens '2K'"):
        Selection(new_tokens="2K").apply(cells)


@pytest.mark.parametrize(
    ("values", "message"), [({"new_tokens": 1}, "would be decoding"), ({"new_tokens": "8K"}, "give fewer")]
)
def test_a_grid_with_other_numbers_is_refused_in_one_line(values, message):
    with pytest.raises(UserError, match=message) as error:
        Study.model_validate({"name": "mine", "grids": [GRID | values]}).cells()
    assert len(str(error.value).splitlines()) <= 2


def test_a_record_has_both_lengths_and_no_more_pairs_than_they_have():
    cell = Cell(
        **{**KERNEL, "mask": "causal", "mask_params": {}, "corpus": None, "seed": 0, "new_tokens": 64}
    )
    written = record(cell)
    assert '"seqlen":8192' in written.model_dump_json() and '"new_tokens":64' in written.model_dump_json()
    facts = MaskFacts(digest="0", area=64 * 8192 + 1, num_groups=1, num_bands=1)
    with pytest.raises(ValidationError, match="more than there are"):
        record(cell, mask=facts)


def test_the_studies_have_chunks_and_trees_and_no_decoding():
    for name, longest in (("kv-cache", 131072), ("kv-cache-quick", 512)):
        cells = [cell for cell in load_study(name).cells() if cell.new_tokens is not None]
        assert max(cell.seqlen for cell in cells) == longest
        assert {"causal", "causal_sliding_window", "causal_document", "speculative_tree"} <= {
            cell.mask for cell in cells
        }
        assert min(cell.num_queries for cell in cells) == 16
    chunks = [cell for cell in load_study("kv-cache").cells() if cell.mask == "causal"]
    assert {cell.new_tokens for cell in chunks} == {1024, 4096, 16384}


def test_context_parallelism_refuses_them_in_one_line():
    from longca.core.plugin import Registry
    from longca.masks import LazyMask

    mask = build_mask("causal", seqlen=4096, new_tokens=1024)
    call = Cell(**CP).call_spec
    for strategy in Registry("strategy").load_all():
        kernel = Registry("kernel").load(strategy.kernels[0] if strategy.kernels else "band")
        reason = strategy.refusal(LazyMask(mask.traits, lambda: mask), call, 4, kernel, "cuda")
        assert reason is not None and "run on one device" in reason, strategy.name
