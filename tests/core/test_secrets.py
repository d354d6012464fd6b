"""Passwords and tokens have many ways into what longca keeps; none of them is open."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from longca.core.children.output import Output
from longca.core.errors import UserError
from longca.core.secrets import HIDDEN, bytes_without_secrets, data_without_secrets, without_secrets
from longca.lab.archive.bundle import _config
from longca.lab.images.image import locate
from longca.lab.store.cells import CellStore
from longca.lab.store.decode import Decoder, encode
from longca.lab.store.export import export
from longca.lab.store.load import load
from longca.lab.studies.config import Config
from longca.lab.studies.outcome import Failed
from longca.lab.studies.study import load_study
from tests.helpers.records import record
from tests.lab.store.test_cells import make_record  # noqa: F401

SECRET = "hunter2-Zx9"
DIGEST = f"sha256:{'0' * 64}"


@pytest.mark.parametrize("text", [
    f"docker://me:{SECRET}@registry.io/n@{DIGEST}", f"docker://me:{SECRET}@n@{DIGEST}", f"https://{SECRET}@github.com/a/b.git",
    f"oras://me:{SECRET}/a@b@host:5000/n", f"http://proxy?token={SECRET}&x=1", f"https://s3/x?X-Amz-Signature={SECRET}",
    f"HF_TOKEN={SECRET}", f"export AWS_SECRET_ACCESS_KEY='{SECRET}'".replace("'", ""), f"password: {SECRET}", f'{{"password": "{SECRET}"}}',  # noqa: E501
    f"Authorization: Bearer {SECRET}", f"login --password {SECRET} --x", f"--api-key={SECRET}", f"ghp_{'a1' * 10}{SECRET}",  # noqa: E501
    f"-----BEGIN OPENSSH PRIVATE KEY-----\n{SECRET}\n-----END OPENSSH PRIVATE KEY-----"])  # fmt: skip
def test_a_secret_of_any_form_is_hidden(text: str):
    hidden = without_secrets(text, {})
    assert SECRET not in hidden and HIDDEN in hidden and without_secrets(hidden, {}) == hidden


@pytest.mark.parametrize("text", [
    f"docker://pytorch/pytorch@{DIGEST}", f"docker://host:5000/n@{DIGEST}", "tcp://10.0.0.1:29500", "http://host:80/@scope/package",
    "16384 tokens, num_tokens=4096, tokens: 8", "KV heads 8, 29 of 64; key=3 block_key: 7", "file:///tmp/a@b", "compass: north",  # noqa: E501
    "basic block 12", "signature: forward(q, k, v)", "mask_key=12345678", "PWD"])  # fmt: skip
def test_what_is_none_stays(text: str):
    assert without_secrets(text, {}) == text


def test_values_of_variables_that_are_named_like_secrets():
    environ = {
        "MY_TOKEN": SECRET,
        "PWD": "/home/me/folder",
        "TOKENIZERS_PARALLELISM": "something",
        "DB_PASSWORD": "short",
    }
    assert (
        without_secrets(f"in {SECRET}: /home/me/folder something short", environ)
        == "in ***: /home/me/folder something short"
    )


def test_data_without_a_secret_are_not_copied():
    data = {"a": [1, "b", None], "c": {"d": 1.5}}
    assert data_without_secrets(data) is data
    assert data_without_secrets({"a": ["x", f"https://u:{SECRET}@h"]}) == {"a": ["x", "https://***@h"]}
    assert bytes_without_secrets(b"\xff ok") == b"\xff ok"


def test_no_record_has_one(tmp_path: Path, make_record, monkeypatch: pytest.MonkeyPatch):  # noqa: F811
    """Neither a new one nor one that an earlier version has written, and so no page, table or bundle of
    them."""
    monkeypatch.setenv("MY_TOKEN", SECRET + "x")
    log = f"raised at: a.py:1 in f\npulling https://me:{SECRET}@host/x\n{SECRET}x\n"
    failed = record(
        make_record().cell, Failed(type="RuntimeError", message=f"no https://me:{SECRET}@host", log=log)
    )
    leaking = failed.model_copy(update={"notes": (f"docker://me:{SECRET}@host/n",)})
    store = CellStore(tmp_path / "s")
    path = store.write(leaking)
    assert SECRET not in path.read_text() and "***@host" in path.read_text()
    old = Decoder().decode(encode(leaking))
    assert SECRET not in repr(old)
    path.write_bytes(encode(leaking))
    for file in export(load(store.folder).records, tmp_path):
        assert SECRET.encode() not in file.read_bytes()


def test_no_log_has_one_even_in_two_parts(tmp_path: Path):
    output = Output(tmp_path / "worker.log")
    output.begin(f"start https://me:{SECRET}@host")
    program = (
        f"import os, time; os.write(1, b'x https://me:{SECRET[:5]}'); time.sleep(0.3); os.write(1, "
        f"b'{SECRET[5:]}@host y\\nend')"
    )
    subprocess.run([sys.executable, "-c", program], stdout=output.writer, check=True)
    os.close(output.writer)
    tail = output.tail()
    output.close()
    assert tail == "x https://***@host y\nend"
    assert (tmp_path / "worker.log").read_text() == f"== start https://***@host\n{tail}"


def test_neither_messages_nor_files_of_images_nor_bundles_have_the_password_of_an_image(tmp_path: Path):
    address = f"docker://me:{SECRET}@host/name@{DIGEST}"
    image = locate(address)
    assert image.file == locate(f"docker://host/name@{DIGEST}").file and image.wanted == address
    assert SECRET not in str(
        UserError(f"Image '{address}' could not be made", why=f"`pull {address}` failed")
    )
    study = tmp_path / "s.yaml"
    study.write_text(
        f"title: by https://me:{SECRET}@host\n"
        "grids: [{kernel: naive, mask: causal, seqlen: 64, heads: '2:1', head_dim: 16, dtype: fp32}]\n"
    )
    loaded = load_study(str(study))
    assert loaded.title == "by https://***@host"
    settings = yaml.safe_load(_config(loaded, Config(image=address), {}))
    assert settings["image"] == f"docker://***@host/name@{DIGEST}"
