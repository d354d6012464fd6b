"""The choice of blocks."""

import numpy as np
import pytest

from longca.masks.choice import num_kept, qk_blocks, random_blocks


@pytest.mark.parametrize(
    ("num_blocks", "density", "kept"),
    [(10, 0.1, 1), (10, 0.05, 1), (100, 0.29, 29), (10, 0.7, 7), (7, 0.5, 3), (1, 0.2, 1), (64, 1.0, 64)],
)
def test_number_of_kept_blocks(num_blocks, density, kept):
    assert num_kept(num_blocks, density) == kept


def test_every_block_is_as_likely():
    visible = random_blocks(np.random.default_rng(0), 20_000, 9, 1 / 3)
    assert (visible.sum(axis=1) == 3).all()
    assert np.abs(visible.mean(axis=0) - 1 / 3).max() < 0.02  # six standard deviations
    together = np.corrcoef(visible[:, 0], visible[:, 8])[0, 1]
    assert abs(together + 1 / 8) < 0.04  # of any two columns, as without replacement


def test_equal_scores_are_told_apart_by_their_column():
    class Even:
        def integers(self, low, high, size, dtype):
            return np.full(size, low, dtype)

        def standard_normal(self, size):
            return np.ones(size)

    for choose in (random_blocks, qk_blocks):
        assert choose(Even(), 2, 10, 0.3).tolist() == [[False] * 7 + [True] * 3] * 2


def test_qk_scores_favour_the_same_columns_where_queries_agree():
    """Rows are correlated, as those of a product of low rank are: fewer directions hold more of the
    choice."""
    spread = []
    for choose in (qk_blocks, random_blocks):
        centred = choose(np.random.default_rng(0), 4096, 256, 0.25) - 0.25
        spread.append(np.linalg.eigvalsh(centred.T @ centred)[-1])
    assert spread[0] > 2 * spread[1]


def test_qk_choice_is_the_largest_products():
    rng = np.random.default_rng(5)
    q, k = (np.rint(rng.standard_normal((num, 128)) * 4096) for num in (6, 40))
    expected = np.zeros((6, 40), dtype=bool)
    for row, query in enumerate(q):
        products = [int(sum(int(a) * int(b) for a, b in zip(query, key, strict=True))) for key in k]
        expected[row, sorted(range(40), key=lambda column: (products[column], column))[-10:]] = True
    assert np.array_equal(qk_blocks(np.random.default_rng(5), 6, 40, 0.25), expected)
