"""Test modules that need not be imported: those without a test that `-m` can choose."""

import re

OWN = frozenset({"long", "commands", "wheel", "slurm"})
"""marks that stand in the module of their test, never in a helper or a conftest.py"""
_MARK = re.compile(r"pytest\.mark\.(\w+)")
_OF_MODULE = re.compile(r"^pytestmark = (\[.*?^\]|[^\n]*)", re.MULTILINE | re.DOTALL)


def is_left_out(module: str, chosen: str) -> bool:
    """True if no test of a module has marks that fit.

    Args:
        module: its text.
        chosen: names of marks as of `-m`, such as "long and not slow"; of other expressions nothing is said.
    """
    terms = chosen.split(" and ")
    if any(re.fullmatch(r"(not )?\w+", term) is None for term in terms):
        return False
    unwanted = {term.removeprefix("not ") for term in terms if term.startswith("not ")}
    wanted = {term for term in terms if not term.startswith("not ")} & OWN
    blocks = _OF_MODULE.findall(module)
    if "pytestmark" in module and not blocks:  # that of another module
        return False
    of_module = {name for block in blocks for name in _MARK.findall(block)}
    return bool(of_module & unwanted) or not wanted <= set(_MARK.findall(module))
