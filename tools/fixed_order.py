"""Writes what the committed records say of backward passes in a fixed order, whose gradients have the same
bits in every run: a sentence of the README, and the table of docs/results/h200/fixed-order.md.

    python -m tools.fixed_order

Only kernels whose bits were compared and were the same take part. Who leads, and who is not told apart,
`longca.lab.ranking` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median

from longca.core import Registry, format_length
from longca.lab.ranking import Standing
from longca.lab.ranking.sentences import finding_text
from longca.lab.ranking.table import COLUMNS as OF_RANKING
from longca.lab.ranking.table import standings
from longca.lab.store.table import RANKED_BY, is_deterministic
from longca.lab.store.text import plural, short_device
from tools.committed import with_playoffs
from tools.pages import ROOT, as_code, with_blocks

RECORDS = ROOT / "reports/h200/deterministic.parquet"
README = ROOT / "README.md"
PAGE = ROOT / "docs/results/h200/fixed-order.md"
OWN = "band"
COLUMNS = tuple(dict.fromkeys((*OF_RANKING, *RANKED_BY, "deterministic")))


@dataclass(frozen=True)
class League:
    """The standings of all cases, backward, of kernels with a fixed order of additions."""

    device: str
    standings: dict[tuple[str, int], Standing]
    """(mask, tokens) → standing, the shorter ones first, masks in the order of their numbers"""

    @property
    def kernels(self) -> list[str]:
        """The project's own kernel, then the others by name."""
        names = {entry.method for case in self.standings.values() for entry in case.entries}
        return [OWN, *sorted(names - {OWN})]

    def ratios(self) -> dict[tuple[str, int], float]:
        """The rate of the project's own kernel over that of the fastest other one."""
        return {key: _ratio(case) for key, case in self.standings.items()}

    def sentence(self) -> str:
        lengths = [format_length(tokens) for tokens in dict.fromkeys(tokens for _, tokens in self.standings)]
        masks = len({mask for mask, _ in self.standings})
        covered = f"{masks} masks at {' and '.join(lengths)} tokens"
        finding = finding_text(self.standings, "kernel", covered).partition(". ")[0]
        finding = as_code(finding, self.kernels)
        ratios = sorted(self.ratios().values())
        return (
            f"**Backward with the same bits in every run**, on {short_device(self.device)}: {finding}. Its "
            f"rate is {ratios[0]:.2f} to {ratios[-1]:.0f} times that of the fastest other kernel, "
            f"{median(ratios):.2f} times in the median."
        )

    def table(self) -> str:
        """Rates of all kernels by mask and length, in Markdown."""
        lines = [
            "| tokens | mask | " + " | ".join(self.kernels) + f" | {OWN} over the best other |",
            "| ---: | --- | " + "---: | " * (len(self.kernels) + 1),
        ]
        for (mask, tokens), case in self.standings.items():
            cells = [_cell(case, kernel) for kernel in self.kernels]
            lines.append(f"| {format_length(tokens)} | {mask} | {' | '.join(cells)} | {_ratio(case):.2f} × |")
        return "\n".join(line.rstrip() for line in lines)

    def block(self) -> str:
        """The part of the page: the sentence, what was measured, and the table."""
        entries = [entry for case in self.standings.values() for entry in case.entries]
        return "\n".join(
            [
                self.sentence(),
                "",
                "TFLOP/s, 64:8 heads, head dim 128, bf16. An asterisk marks the fastest of a case, and those "
                f"that its play-off does not tell apart from it; n = {plural(len(entries), 'cell')}. "
                "Empty: the kernel does not run that mask.",
                "",
                self.table(),
            ]
        )


def _ratio(case: Standing) -> float:
    own = case.entry(OWN)
    assert own is not None, "the project's own kernel runs all masks"
    return own.rate / max(entry.rate for entry in case.entries if entry.method != OWN)


def _cell(case: Standing, kernel: str) -> str:
    entry = case.entry(kernel)
    return f"{entry.rate:.0f}{'*' if kernel in case.leaders else ''}" if entry else ""


def league(records: Path = RECORDS) -> League:
    """The standings of a file of records with the play-offs of its cells."""
    rows = with_playoffs([records], COLUMNS)
    rows = rows[is_deterministic(rows)]
    (device,) = set(rows.device[rows.status == "ok"])
    number = {pattern.name: pattern.number for pattern in Registry("mask").load_all()}
    of_cases = standings(rows, ("mask", "seqlen"))
    ordered = sorted(of_cases, key=lambda key: (key[1], number[key[0]]))
    return League(device, {(str(mask), int(tokens)): of_cases[mask, tokens] for mask, tokens in ordered})


def pages(result: League) -> dict[Path, str]:
    """File → its content."""
    return {
        README: with_blocks(README, fixed_order=result.sentence()),
        PAGE: with_blocks(PAGE, fixed_order=result.block()),
    }


if __name__ == "__main__":
    for path, content in pages(league()).items():
        path.write_text(content, encoding="utf-8")
