"""Cells as the library sees them: the mask and the strategy that a cell names, and tables of masks and
draws."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.lab.studies import checkout, facts, fitting, samples
    from longca.lab.studies.cell import (
        DRAWS,
        LATER_FIELDS,
        USUAL_DTYPE,
        USUAL_HEAD_DIM,
        USUAL_HEADS,
        USUAL_SEQLEN,
        Cell,
        check_new_tokens,
        check_ranks,
        refuse_option_names,
        usual_corpus,
    )
    from longca.lab.studies.config import Config, load_config, settings
    from longca.lab.studies.grid import Length, Measure
    from longca.lab.studies.masks import cell_mask, mask_name
    from longca.lab.studies.outcome import STATUSES, WAS_AT, Failed, OutOfMemory, TimedOut
    from longca.lab.studies.playoff.case import case_id
    from longca.lab.studies.record import (
        COSTS,
        SCHEMA_VERSION,
        Accuracy,
        Environment,
        Node,
        Record,
        Software,
        Source,
    )
    from longca.lab.studies.select import Selection, loadable
    from longca.lab.studies.setting import SETTING_AXES, setting_distance
    from longca.lab.studies.site import layout
    from longca.lab.studies.strategies import strategy_of
    from longca.lab.studies.study import Study, load_study, study_path
    from longca.lab.studies.tables import mask_table, sample_table
else:
    __getattr__, __dir__ = face(__name__)

__all__ = [
    "COSTS",
    "DRAWS",
    "LATER_FIELDS",
    "SCHEMA_VERSION",
    "SETTING_AXES",
    "STATUSES",
    "USUAL_DTYPE",
    "USUAL_HEADS",
    "USUAL_HEAD_DIM",
    "USUAL_SEQLEN",
    "WAS_AT",
    "Accuracy",
    "Cell",
    "Config",
    "Environment",
    "Failed",
    "Length",
    "Measure",
    "Node",
    "OutOfMemory",
    "Record",
    "Selection",
    "Software",
    "Source",
    "Study",
    "TimedOut",
    "case_id",
    "cell_mask",
    "check_new_tokens",
    "check_ranks",
    "checkout",
    "facts",
    "fitting",
    "layout",
    "load_config",
    "load_study",
    "loadable",
    "mask_name",
    "mask_table",
    "refuse_option_names",
    "sample_table",
    "samples",
    "setting_distance",
    "settings",
    "strategy_of",
    "study_path",
    "usual_corpus",
]
