"""Costs of a build are taken from its log and its processes, step by step."""

import json
from pathlib import Path

import pytest

from longca.core.errors import UserError
from longca.lab.images import image as images
from tools import image_build
from tools.image_build import FIRST, measured, step, table_of

LOG = """INFO:    Starting build...
+ export SOURCE_DATE_EPOCH=1
+ apt-get update -qq
+ DEBIAN_FRONTEND=noninteractive
+ /opt/venv/bin/pip install -q -r /opt/longca/requirements.lock
+ python -m kernel_build /wheels --only fa2
src/one.cu: 12 s
src/two.cu: 0 s
fa2: two.so after 12 s
INFO:    Creating SIF file...
"""


def test_the_step_is_that_of_the_last_line_that_begins_one(tmp_path: Path):
    log = tmp_path / "x.log"
    collected = []
    assert step(log) == FIRST
    for line in LOG.splitlines(keepends=True):
        with log.open("a") as file:
            file.write(line)
        collected.append(step(log))
    assert list(dict.fromkeys(collected)) == [
        FIRST,
        "the system's packages",
        "Python packages",
        "kernels",
        "the image packed",
    ]


def test_a_build_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A command that writes a log and an image, as a build does, stands in for it."""
    monkeypatch.setattr(images, "IMAGES", tmp_path)
    monkeypatch.setattr(image_build, "PERIOD_S", 0.05)
    builder = tmp_path / "builder.py"
    builder.write_text(
        f"import pathlib, time\nheld = b'x' * "
        f"50_000_000\npathlib.Path('{tmp_path}/cpu.sif.log').write_text({LOG!r})\n"
        f"time.sleep(1)\npathlib.Path('{tmp_path}/cpu.sif').write_bytes(b'1234')\n"
    )
    monkeypatch.setattr(image_build, "COMMAND", [image_build.sys.executable, str(builder)])
    made = json.loads(json.dumps(measured("cpu")))
    assert (made["image_bytes"], made["num_units"], made["num_compiled"]) == (4, 2, 1)
    assert made["steps"][-1]["step"] == "the image packed" and made["steps"][-1]["peak_bytes"] > 50_000_000
    table = table_of([made])
    assert "min, with 1 of its 2 units compiled, and 4.00 B as an image." in table.caption and len(
        table.rows
    ) == len(made["steps"])
    with pytest.raises(UserError, match="is here"):
        measured("cpu")


def test_the_first_build_stands_beside_one_with_kept_objects():
    first = {
        "image": "big",
        "date": "2026-11-23",
        "machine": "two cores",
        "seconds": 5729.4,
        "image_bytes": 2**30,
        "num_units": 46,
        "num_compiled": 39,
        "steps": [{"step": "kernels", "seconds": 5509.1, "peak_bytes": 2**30, "disk_bytes": 2**30}],
    }
    again = {
        **first,
        "seconds": 241.9,
        "num_compiled": 0,
        "image_bytes": 2**29,
        "steps": [{**first["steps"][0], "seconds": 16.2}],
    }
    for builds in ([first, again], [again, first]):
        table = table_of(builds)
        assert table.rows == (("`big`", "kernels", "91:49", "0:16", "1.00 GiB", "1.00 GiB"),)
        assert table.caption.startswith(
            "`big` takes 95:29 min the first time, with 39 of its 46 units compiled, 4:01 min with 46 of them"
            " kept, and 512 MiB as an image."
        )
    assert table_of([first]).rows[0][3] == "" and "5:29 min, with 39 of its 46" in table_of([first]).caption
