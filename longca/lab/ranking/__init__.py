"""Ranking: who is faster, by how much, and who is not told apart. The only place that knows. Never imports
torch.

Only `longca.lab.ranking.table` needs pandas. `longca.lab.ranking.sentences` has the words for all of it.
"""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.lab.ranking import sentences, table
    from longca.lab.ranking.lead import Lead, compare, mean_lead
    from longca.lab.ranking.measurement import Measurement
    from longca.lab.ranking.order import RankedMethod, Standing, mean_standing, standing
    from longca.lab.ranking.point import MeasuredPoint
    from longca.lab.ranking.protocol import ANY_TWO, HALF, competing, share_protocol
    from longca.lab.ranking.record import measurement_of
    from longca.lab.ranking.relation import RELATIONS, WORDS, Relation, RepeatPair, relation_of, words_of
    from longca.lab.ranking.repeats import is_told_apart, repeat_pairs
    from longca.lab.ranking.resolution import LEAST_PAIRS, Resolution, Resolutions, is_plausible
    from longca.lab.ranking.tally import Tally, num_open, num_played_off, tallies
    from longca.lab.ranking.total import total_standing
else:
    __getattr__, __dir__ = face(__name__)

__all__ = [
    "ANY_TWO",
    "HALF",
    "LEAST_PAIRS",
    "RELATIONS",
    "WORDS",
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
    "compare",
    "competing",
    "is_plausible",
    "is_told_apart",
    "mean_lead",
    "mean_standing",
    "measurement_of",
    "num_open",
    "num_played_off",
    "relation_of",
    "repeat_pairs",
    "sentences",
    "share_protocol",
    "standing",
    "table",
    "tallies",
    "total_standing",
    "words_of",
]
