"""Machines are told apart, also where the system tells no number."""

import platform
from pathlib import Path

import pytest

from longca.core import host


def test_the_number_of_a_start_and_the_name_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    boot = tmp_path / "boot_id"
    monkeypatch.setattr(host, "BOOT", boot)
    assert host.boot_id() == platform.node()
    boot.write_text("\n")
    assert host.boot_id() == platform.node(), "a file that tells nothing"
    boot.write_text("0f3c\n")
    assert host.boot_id() == "0f3c"
