"""Records, rates and standings for tests of the report."""

from longca.lab.ranking import tallies
from longca.lab.ranking.sentences import counts_text
from longca.lab.report.decide.cases import cases
from longca.lab.report.findings import at_largest, standings_of
from longca.lab.report.rates import rate_points
from longca.lab.store.table import derived
from longca.lab.studies.cell import Cell
from longca.lab.studies.record import Record, Samples
from tests.helpers.records import record


def cell(kernel="sdpa", mask="causal", seqlen=1024, **fields):
    return Cell(
        **{
            "kind": "kernel",
            "kernel": kernel,
            "mask": mask,
            "seqlen": seqlen,
            "num_q_heads": 8,
            "num_kv_heads": 2,
            "head_dim": 64,
            "dtype": "bf16",
            "direction": "fwd",
            **fields,
        }
    )


def timed(kernel, mask, *times, **fields):
    return record(
        cell(kernel, mask, **fields), samples=Samples(time_ms=(times,), warmup=1, timer="monotonic")
    )


def tallied(table):
    """Method → its tally over the cases of kernels that count."""
    return {tally.method: tally for tally in tallies(cases(table, "kernel").counting)}


def repeated():
    """full_document in both definitions: flex runs the usual one alone, naive only the paper's."""

    def of(kernel, time, paper_compat):
        return timed(kernel, "full_document", time, time, mask_params={"paper_compat": paper_compat})

    return [of("flex", 1.0, False), of("sdpa", 2.0, False), of("sdpa", 9.0, True), of("naive", 3.0, True)]


def rates(records):
    return rate_points(derived(records), "kernel", ["direction", "seqlen"])


def judged(records):
    """Mask → (length, standing) at which it is judged."""
    return {
        mask: chosen
        for (mask,), chosen in at_largest(standings_of(rates(records), ["mask_label", "seqlen"])).items()
    }


def told(records):
    return counts_text({mask: case for mask, (_, case) in judged(records).items()})


def both(mask: str, gpu: str = "NVIDIA H200", **fields: object) -> list[Record]:
    """Two kernels under a mask."""
    return [record(cell(kernel, mask, **fields), gpu=gpu) for kernel in ("sdpa", "flex")]
