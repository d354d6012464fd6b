"""Times advice over draws on one core, and shows what a single draw would have advised.

    python -m benchmarks.predict.draws [--ranks 96] [--tokens 8K] [--draws 8] [--corpus prolong512k_long]

Wanted: at most 10 seconds of one core for 96 ranks and 8 draws. No GPU is needed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence

from benchmarks.common.text import names
from longca.core import Registry, format_length, parse_length
from longca.lab.advice import advise
from longca.lab.store.text import number
from longca.lab.studies import DRAWS
from longca.masks import build_mask
from tools.table import Table, add_options

KERNEL = "band"
PROFILE = "h100-ib400"
HEADS = (64, 8)


def main(arguments: Sequence[str]) -> int:
    known = [name for name in Registry("mask").names() if Registry("mask").load(name).uses_documents]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.predict.draws", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("--ranks", type=int, default=96)
    parser.add_argument("--tokens", type=parse_length, default=8192, help="of each rank (8K)")
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--corpus", default="prolong512k_long")
    parser.add_argument(
        "--directions", type=lambda text: names(text, ("fwd", "both")), default=("fwd", "both")
    )
    parser.add_argument("--masks", type=lambda text: names(text, known), default=known, help=", ".join(known))
    add_options(parser)
    options = parser.parse_args(arguments)
    rows = []
    records = []
    for name in options.masks:
        for direction in options.directions:
            begun = time.process_time()
            mask = build_mask(name, seqlen=options.ranks * options.tokens, corpus=options.corpus)
            answer = advise(mask, gpus=options.ranks, num_q_heads=HEADS[0], num_kv_heads=HEADS[1], kernels=[KERNEL],  # noqa: E501
                            direction=direction, profile=PROFILE, draws=options.draws)  # fmt: skip
            seconds = time.process_time() - begun
            firsts = Counter[str]()
            for seed in answer.seeds:
                ran = {
                    option.candidate.title: option.by_seed[seed]
                    for option in answer.options
                    if seed in option.by_seed
                }
                firsts[min(ran, key=ran.__getitem__)] += 1
            times = answer.best.by_seed.values()
            counts = ", ".join(f"{title} {count}" for title, count in firsts.most_common())
            spread = f"{number(min(times) * 1e3)}–{number(max(times) * 1e3)}"
            rows.append(
                (
                    name,
                    direction,
                    answer.best.candidate.title,
                    number(answer.best.prediction.seconds * 1e3),
                    spread,
                    counts,
                    f"{seconds:.1f}",
                )
            )
            records.append(
                {
                    "mask": name,
                    "direction": direction,
                    "advised": answer.best.candidate.title,
                    "cpu_s": seconds,
                    "firsts": dict(firsts),
                }
            )
    caption = (
        f"Advice for {options.ranks} ranks × {format_length(options.tokens)} tokens over {options.draws} "
        f"draws of {options.corpus}: "
        "mean and range of the advised way's time, how often each way is first in a draw, and seconds of one "
        "core."
    )
    columns = ("mask", "", "advised", "mean ms", "over draws", "first in draws", "CPU s")
    Table("predict_draws", caption, columns, tuple(rows), tuple(records), (*columns[:3], columns[5])).publish(
        options
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
