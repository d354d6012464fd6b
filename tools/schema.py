"""Writes workflow/schemas/config.schema.json, by which Snakemake checks the settings, from the one definition
of them."""

import json
from pathlib import Path

from longca.lab.studies import Config
from tools.described import described_schema

TARGET = Path("workflow/schemas/config.schema.json")


def schema() -> str:
    content = {"$schema": "https://json-schema.org/draft/2020-12/schema", **described_schema(Config)}
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    TARGET.write_text(schema(), encoding="utf-8")
