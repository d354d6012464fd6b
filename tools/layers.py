"""The layers of the package, and which layer may import which.

A layer is a package, a sub-package or a module that stands between packages. Each file belongs to the layer
with the longest name that begins its own. `LIBRARY` stands alone: it imports nothing of the laboratory.
"""

_PLANNED = "core masks kernels cp.partition cp.schedule cp.contract"
_LIBRARY = f"""
core
data                           core
masks                          core data
lowering                       core masks
ops                            core masks lowering
ops.band.tables                core masks ops.band.tables
ops.band.tables.tile_rows      masks
ops.band.tables.backward_rule  masks ops.band.tables.tile_rows
ops.band.config                core ops.band.tables
ops.band.replay
ops.sinks
ops.transfer
ops.transforms                 core
ops.band.plan                  core masks ops.transfer ops.band.tables ops.band.config ops.band.replay
ops.band.triton                ops.band.tables ops.band.config ops.band.replay
ops.band.sm90                  ops.band.tables ops.band.triton ops.band.config ops.band.replay ops.band.plan
ops.band                       core masks ops.band ops.sinks
kernels                        core masks lowering ops
dispatch                       core masks lowering ops kernels
predict                        core masks lowering ops.band.tables.backward_rule
cp                             core
cp.comm                        core
cp.partition                   core masks
cp.schedule                    core masks kernels cp.partition
cp.contract                    core kernels
cp.forecast                    core masks kernels predict cp.partition cp.schedule
cp.paper_style_forecast        core masks predict cp.baselines cp.schedule cp.forecast
cp.runtime                     {_PLANNED} ops cp.comm
cp.planned                     {_PLANNED} cp.comm cp.runtime
cp.baselines                   core masks kernels cp.comm cp.partition cp.contract cp.runtime
cp.strategies                  {_PLANNED} lowering cp.comm cp.runtime cp.planned cp.baselines
cp.calls                       core masks lowering kernels predict cp.comm cp.contract cp.forecast cp.partition cp.runtime cp.schedule ops.sinks ops.transfer ops.transforms
cp.context                     core masks cp.calls cp.comm
transformers                   core masks dispatch cp
"""  # noqa: E501
# in the laboratory, "lab." is left out
_LABORATORY = """
code
studies        code data masks predict cp.contract
store
environment
published
ranking        store
claims         masks store ranking
advice         masks kernels store ranking predict claims cp.contract cp.partition cp.schedule cp.forecast cp.paper_style_forecast
report         store ranking advice predict
paper          ranking data masks kernels store published claims report advice cp.partition cp.schedule
compare        store ranking published report
archive        store ranking report
images         store
bench
bench.check    masks kernels
bench.measure  masks kernels cp.comm cp.partition cp.contract bench.check
bench.probe    masks kernels predict store cp.comm cp.forecast bench.measure
bench.judge    masks kernels store bench.check bench.measure
bench.playoff  bench.check bench.measure bench.judge
bench.workers  store environment cp.comm bench.measure bench.judge bench.playoff
bench.plan     data masks kernels store bench.measure bench.workers
bench.run      data masks kernels store ranking bench.measure bench.workers bench.plan
templates      masks lowering kernels cp.partition cp.schedule cp.planned store report
cli            data masks kernels cp store published ranking claims report paper compare archive images bench advice predict
"""  # noqa: E501
_FOR_ALL_OF_THE_LABORATORY = {"core", "lab.studies", "lab.code"}


def _rows(table: str) -> dict[str, list[str]]:
    return {row[0]: row[1:] for line in table.splitlines() if (row := line.split())}


def _allowed() -> dict[str, set[str]]:
    library = {name: set(others) for name, others in _rows(_LIBRARY).items()}
    laboratory = _rows(_LABORATORY)
    named = {other: f"lab.{other}" for other in laboratory}
    return library | {
        named[name]: {named.get(other, other) for other in others}
        | ({"core"} if name == "code" else _FOR_ALL_OF_THE_LABORATORY - {named[name]})
        for name, others in laboratory.items()
    }


# layer → the layers of longca it may import, and all that they hold; whatever is not named is forbidden
ALLOWED = _allowed()
LIBRARY = tuple(name for name in ALLOWED if not name.startswith("lab.") and "." not in name)
# imported inside functions, where at all
HEAVY = {"torch", "triton", "pandas", "pyarrow", "matplotlib", "jinja2"}
# they only run beside them
AT_TOP = {
    "lab.bench": {"torch"},
    "dispatch": {"torch"},
    "ops": {"torch", "triton"},
    "transformers": {"torch"},
    "lab.templates": {"torch"},
}
NEVER_TORCH = (
    *("core", "data", "masks", "predict"),
    *("cp.partition", "cp.schedule", "cp.forecast", "cp.paper_style_forecast"),
    *(
        "lab.studies",
        "lab.code",
        "lab.store",
        "lab.environment",
        "lab.published",
        "lab.ranking",
        "lab.claims",
    ),
    *("lab.report", "lab.compare", "lab.archive", "lab.images", "lab.advice"),
)
# what ARCHITECTURE.md draws: the layers inside a package, and a title
DRAWN = {
    "": "The library",
    "lab": "The laboratory",
    "cp": "Context parallelism",
    "ops.band": "Band attention",
    "lab.bench": "Measuring",
}
# the files that one thing passes through, in their order; {} stands for any plug-in of that folder
WAYS = {
    "One cell, from a study to its record": (
        "lab.studies.study",
        "lab.bench.run.runner",
        "lab.bench.workers.pool",
        "lab.bench.workers.session",
        "lab.bench.measure.kernel",
        "kernels.backends.{}",
        "lab.bench.judge.court",
        "lab.store.cells",
    ),
    "One message, from a strategy to the wire": (
        "cp.strategies.{}",
        "cp.planned",
        "cp.schedule.plan",
        "cp.runtime.plan_attention",
        "cp.runtime.kv_exchange",
        "cp.comm.backend",
    ),
    "One claim, from records to its verdict": (
        "lab.store.load",
        "lab.claims.rows",
        "lab.claims.study.{}",
        "lab.claims.contract",
        "lab.cli.claims",
    ),
}
