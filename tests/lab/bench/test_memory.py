from pathlib import Path

import pytest
import torch

from longca.lab.bench.measure.memory import peak_memory

CPU = torch.device("cpu")
MIB = 1 << 20


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux only")
def test_peak_of_a_call_is_what_it_touched() -> None:
    kept = torch.ones(32 * MIB, dtype=torch.uint8)  # resident before: not the call's

    def call() -> torch.Tensor:
        scratch = torch.ones(96 * MIB, dtype=torch.uint8)
        return scratch[: 64 * MIB].clone()

    for _ in range(2):  # the second call finds as little left over by the first as the first found
        memory = peak_memory(call, CPU)
        assert memory is not None and memory.source == "resident_set"
        assert 159 * MIB < memory.peak_bytes[0] < 190 * MIB  # Linux counts pages of each thread a little late
        assert memory.absolute_peak_bytes[0] > memory.peak_bytes[0] + kept.numel()


def test_unknown_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("longca.lab.bench.measure.memory.PROCESS", tmp_path)
    assert peak_memory(lambda: None, CPU) is None
