"""Templates of pages."""

from pathlib import Path

from longca.lab.report.look.template import page_templates


def test_a_page_has_no_control_characters_whatever_names_hold(tmp_path: Path):
    (tmp_path / "x.html.j2").write_text("<h1 title='{{ name }}'>{{ name }}</h1>\n\t<p>{{ other }}</p>")
    page = (
        page_templates(tmp_path)
        .get_template("x.html.j2")
        .render(name="\x1b[31m\u202e<b>", other="a\u00a0\u2212b")
    )
    safe = r"\x1b[31m\u202e&lt;b&gt;"
    assert page == f"<h1 title='{safe}'>{safe}</h1>\n\t<p>a\u00a0\u2212b</p>"
