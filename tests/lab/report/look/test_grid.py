"""Panels have their places in a figure, and others in a narrow window."""

from hypothesis import given
from hypothesis import strategies as st

from longca.lab.report.look.grid import NARROW_IN, POINTS, PanelGrid, panel_grid

GRIDS = st.builds(
    panel_grid,
    st.integers(1, 30),
    st.just(11.0),
    per_row=st.integers(2, 5),
    panel_in=st.just(1.35),
    above_in=st.sampled_from([0.0, 0.44]),
    title_lines=st.integers(1, 2),
    title_in=st.floats(0.0, 3.4),
    label_chars=st.integers(0, 20),
)


def places(grid: PanelGrid) -> list[tuple[float, float]]:
    return [grid.corner(index) for index in range(grid.count)]


@given(GRIDS)
def test_panels_do_not_overlap_and_stay_in_the_drawing(grid: PanelGrid) -> None:
    for wide_in, shown in ((11.0, grid), (grid.narrow.size[0] / POINTS, grid.narrow)):
        assert len({(x, y) for x, y in places(shown)}) == grid.count
        for x, y in places(shown):
            assert x + shown.width_in + shown.room_in < wide_in and y + shown.panel_in < shown.height_in
        for (x, y), (next_x, next_y) in zip(places(shown), places(shown)[1:], strict=False):
            assert next_x > x + shown.width_in + shown.room_in or next_y > y + shown.panel_in


@given(GRIDS)
def test_each_panel_moves_to_its_place_in_a_narrow_window(grid: PanelGrid) -> None:
    for index, ((x, y), (new_x, new_y)) in enumerate(zip(places(grid), places(grid.narrow), strict=True)):
        shift_x, shift_y = grid.shift(index)
        assert abs(x * POINTS + shift_x - new_x * POINTS) < 1e-9
        assert abs(y * POINTS + shift_y - new_y * POINTS) < 1e-9


def test_narrow_windows_have_as_many_columns_as_fit() -> None:
    small = panel_grid(
        10, 11.0, per_row=5, panel_in=1.35, above_in=0.0, title_lines=1, title_in=0.0, label_chars=0
    )
    assert (small.columns, small.narrow.columns) == (5, 2) and small.narrow.size[0] < NARROW_IN * POINTS
    labelled = panel_grid(
        6, 11.0, per_row=4, panel_in=1.35, above_in=0.0, title_lines=2, title_in=0.0, label_chars=12
    )
    assert labelled.narrow.columns == 1
