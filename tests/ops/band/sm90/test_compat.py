"""Functions of Gluon that versions of Triton rename: band attention is unavailable without one."""

import importlib.util
import sys

import pytest

from tests.helpers.ops.availability import band_unavailable

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton here"),
]


@pytest.mark.usefixtures("on_a_gpu")
@pytest.mark.parametrize("name", ["thread_barrier", "shared_memory_descriptor"])
def test_a_missing_function_is_unavailable(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.experimental.gluon import language as gl

    monkeypatch.delitem(sys.modules, "longca.ops.band.sm90.compat", raising=False)
    monkeypatch.delattr(gl, name)
    monkeypatch.delattr(gl, "barrier", raising=False)
    refusal = band_unavailable()
    assert refusal is not None and name in refusal and "install Triton" in refusal and "\n" not in refusal
