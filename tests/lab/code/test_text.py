"""The text of a file's code is the same whatever its local variables are called."""

import ast

import pytest

from longca.lab.code.source import modules_of_package
from longca.lab.code.text import Text
from tests.helpers.core.renamed import renamed


@pytest.mark.long
@pytest.mark.parametrize(
    ("seed", "step"), [(0, 5), *(pytest.param(seed, 1, marks=pytest.mark.slow) for seed in (0, 1, 2))]
)
def test_names_of_local_variables_do_not_count_in_the_packages_own_files(seed: int, step: int):
    """Each `step`-th file with other names for its locals has the same text. `symtable` says what is
    local."""
    number = 0
    for path in list(modules_of_package().values())[::step]:
        text = path.read_text()
        changed, more = renamed(text, seed)
        number += more
        assert Text(changed.encode(), path).text == Text(ast.unparse(ast.parse(text)).encode(), path).text, (
            path
        )
    assert number > 5000 // step
