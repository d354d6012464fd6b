"""The support matrix: the worst outcome of each method, and the reasons."""

from longca.lab.report.matrix import matrices, reasons
from longca.lab.store.table import derived
from longca.lab.studies.outcome import OutOfMemory
from tests.helpers.records import quick_study, record
from tests.helpers.report.cases import cell


def test_the_matrix_shows_the_worst_and_says_why():
    records = [
        record(cell(seqlen=512)),
        record(cell(), OutOfMemory(requested_bytes=1 << 30, where="fwd")),
        record(cell("naive")),
    ]
    (matrix,) = matrices(derived(records))
    ((label, entries),) = matrix.rows
    assert matrix.methods == ["sdpa", "naive"] and label == "causal"
    assert (entries[0].status, entries[0].text, entries[0].partly) == ("oom", "1/2", True)
    assert (
        "ok: 512" in entries[0].tip
        and "oom: 1K – out of memory in fwd, asking for 1.00 GiB" in entries[0].tip
    )
    assert entries[0].link == "#records?method=sdpa&mask=causal&direction=fwd"
    assert entries[1] is None and entries[2].text == "ok"


def test_reasons_are_grouped_gravest_first():
    grouped = reasons(derived(quick_study()))
    assert [reason.status for reason in grouped] == [
        "incorrect",
        "implausible",
        "error",
        "timeout",
        "oom",
        "unavailable",
        "unsupported",
    ]
    assert sum(reason.count for reason in grouped) == sum(
        entry.outcome.status != "ok" for entry in quick_study()
    )
