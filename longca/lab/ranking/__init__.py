"""Ranking: who is faster, by how much, and who is not told apart. The only place that knows. Never imports
torch.

Only `longca.lab.ranking.table` needs pandas. `longca.lab.ranking.sentences` has the words for all of it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longca.lab.ranking.lead import Lead, compare, mean_lead
    from longca.lab.ranking.measurement import Measurement
    from longca.lab.ranking.order import RankedMethod, Standing, mean_standing, standing
    from longca.lab.ranking.point import MeasuredPoint
    from longca.lab.ranking.protocol import competing, share_protocol
    from longca.lab.ranking.relation import RELATIONS, Relation, RepeatPair, relation_of
    from longca.lab.ranking.repeats import is_told_apart, repeat_pairs
    from longca.lab.ranking.resolution import Resolution, Resolutions
    from longca.lab.ranking.tally import Tally, WorstShare, tallies

_MODULES = {
    "lead": ("Lead", "compare", "mean_lead"),
    "measurement": ("Measurement",),
    "order": ("RankedMethod", "Standing", "mean_standing", "standing"),
    "point": ("MeasuredPoint",),
    "protocol": ("competing", "share_protocol"),
    "relation": ("RELATIONS", "Relation", "RepeatPair", "relation_of"),
    "repeats": ("is_told_apart", "repeat_pairs"),
    "resolution": ("Resolution", "Resolutions"),
    "tally": ("Tally", "WorstShare", "tallies"),
}
__all__ = [
    "RELATIONS",
    "Lead",
    "MeasuredPoint",
    "Measurement",
    "RankedMethod",
    "Relation",
    "RepeatPair",
    "Resolution",
    "Resolutions",
    "Standing",
    "Tally",
    "WorstShare",
    "compare",
    "competing",
    "is_told_apart",
    "mean_lead",
    "mean_standing",
    "relation_of",
    "repeat_pairs",
    "share_protocol",
    "standing",
    "tallies",
]


def __getattr__(name: str) -> Any:
    module = next((module for module, names in _MODULES.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module 'longca.lab.ranking' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(f"longca.lab.ranking.{module}"), name)
