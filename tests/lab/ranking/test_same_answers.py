"""Pages, `choose`, claims, `compare`, a run, the heat map and the dispatch table give the same answers."""

from collections import Counter

import pytest

from longca.lab.ranking import compare
from longca.lab.ranking.table import standings
from longca.lab.store.load import COMMITTED
from longca.lab.store.table import derived
from tests.helpers.ranking.places import (
    METHOD_OF_TABLE,
    WHOLE,
    Places,
    SharedCase,
    partly_rested,
    shared_cases,
)
from tools import fastest, heat_map

pytestmark = pytest.mark.long

GPUS = ("H100", "H200")
# questions of each GPU
FEW = 16
ALL = 150


def _agree(gpu: str, cases: list[SharedCase]) -> None:
    places = Places(cases)
    answered = Counter[str]()
    for case in cases:
        expected = places.ranking(case)
        for name, position in WHOLE.items():
            answer = position(places, case)
            if answer is not None:
                answered[name] += 1
                assert answer == expected, (name, case.key)
        assert places.marks(case) == expected.leaders, case.key
        assert places.winners(case) == (expected.first, len(expected.leaders) > 1), case.key
        _agrees_with_table(places, case)
    assert all(answered[name] > 0.6 * len(cases) for name in WHOLE), answered
    ties = sum(len(places.ranking(case).leaders) > 1 for case in cases)
    assert 0 < ties < len(cases), "there are ties and leads among the questions"


def _agrees_with_table(places: Places, case) -> None:
    """The dispatch table has those that are told apart from `band`, and no others."""
    leads = places.table_of_attention(case)
    if leads is None:
        return
    (standing,) = standings(derived(case.records)).values()
    own = standing.entry(METHOD_OF_TABLE)
    assert own is not None
    expected = {
        entry.method: lead.ratio
        for entry in standing.entries
        if entry is not own and (lead := compare(entry.point, own.point)).order == "more"
    }
    assert leads == {method: round(ratio, 2) for method, ratio in expected.items()}, case.key
    assert not leads or METHOD_OF_TABLE not in standing.leaders or len(standing.leaders) > 1


@pytest.mark.parametrize("gpu", GPUS)
def test_all_places_give_the_same_answer(gpu):
    _agree(gpu, shared_cases(gpu, FEW))


@pytest.mark.slow
@pytest.mark.parametrize("gpu", GPUS)
def test_all_places_give_the_same_300_answers(gpu):
    _agree(gpu, shared_cases(gpu, ALL))


def test_all_places_keep_records_with_rests_and_without_apart():
    """Some methods of each case are measured anew, with rests: more than half of them, in every other case
    one alone."""
    cases = [case for case in shared_cases("H100", 2 * FEW) if len({r.cell.kernel for r in case.records}) > 4]
    counts = [
        1 if index % 2 else len({r.cell.kernel for r in case.records}) // 2 + 1
        for index, case in enumerate(cases)
    ]
    mixed = [partly_rested(case, count) for case, count in zip(cases, counts, strict=True)]
    _agree("H100", mixed)
    for case, count in zip(mixed, counts, strict=True):
        (standing,) = standings(derived(case.records)).values()
        methods = {record.cell.kernel for record in case.records}
        assert len(standing.entries) == (count if count > 1 else len(methods) - 1)
        assert standing.rests == (count > 1)
        assert methods - standing.other_protocol.keys() == {entry.method for entry in standing.entries}
        assert not standing.not_asked and not standing.could_not


@pytest.mark.parametrize("gpu", GPUS)
def test_the_heat_map_has_the_standings_of_its_cases(gpu):
    finding = heat_map.finding(COMMITTED / gpu.lower() / f"{gpu.lower()}-dense.parquet")
    assert len(finding.standings) == 24 and all(case.is_compared for case in finding.standings.values())
    cases = {key: set(case.leaders) for key, case in finding.standings.items()}
    framed = {
        (mask, way): {kernel for kernel in finding.kernels if finding.leads(kernel, mask, way)}
        for mask, way in cases
    }
    assert framed == cases and gpu in finding.sentence()
    for (mask, way), case in finding.standings.items():
        assert [finding.share(entry.method, mask, way) for entry in case.entries] == [
            entry.share for entry in case.entries
        ]


def test_the_dispatch_table_ranks_by_the_same_package():
    assert fastest.compare is compare, "no rule of its own"
