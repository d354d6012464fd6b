"""Plans of random masks, shardings and schedules."""

from hypothesis import strategies as st

from longca.cp.partition.sharding import make_sharding
from longca.cp.schedule.plan import Plan, Step
from longca.cp.schedule.ring_and_gather import Gather, Ring
from tests.helpers.masks.strategies import masks, patchworks

PERMUTATIONS = ("contiguous", "zigzag", "stripes", "heap-1", "heap-4", "heap-9", "level-4")


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    mask = draw(st.one_of(masks(max_seqlen=70), patchworks()))
    world = draw(st.integers(1, 6))
    windows = [size for size in range(1, world + 1) if world % size == 0]
    schedule = draw(
        st.one_of(
            st.builds(Gather, st.integers(0, 3)),
            st.builds(Ring, st.sampled_from([None, *windows])),
            st.just(Ring(two_way=True)),
        )
    )
    return schedule.plan(mask, make_sharding(draw(st.sampled_from(PERMUTATIONS)), mask, world))


def all_steps(plan: Plan) -> list[Step]:
    return [step for rank in range(plan.world) for step in plan.steps(rank)]
