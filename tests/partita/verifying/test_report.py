"""How a verification reads."""

from __future__ import annotations

from operator import methodcaller

from partita.verifying.report import Report


def test_report_shows_what_is_off_in_its_own_precision() -> None:
    report = Report(False, 0.0, {"loss": 0.0}, {"loss": 0.5}, {"loss": 0.1})
    assert str(report) == (
        "verify: FAILED: 1 tensors, largest error 0.00e+00 in double precision, "
        "5.00e-01 in the model's own\n"
        "  0.00e+00  loss\n"
        "  5.00e-01  loss in its own precision"
    )


def test_notebooks_show_the_same_and_names_stay_text() -> None:
    name = "<script>"
    report = Report(False, 0.0, {name: 0.0}, {name: 0.5}, {name: 0.1}, divergence="<b>")
    html = methodcaller("_repr_html_")(report)
    assert name not in html
    assert "<b>verify: FAILED: 1 tensors, largest error 0.00e+00" in html
    assert "<br>&lt;b&gt;" in html
    cells = ("&lt;script&gt;", "0.00e+00", "5.00e-01", "1.00e-01")
    assert "".join(f"<td>{cell}</td>" for cell in cells) in html


def test_notebooks_show_why_a_plan_could_not_be_carried_out() -> None:
    html = getattr(Report.of_failure(ValueError("no <way>")), "_repr_html_")()  # noqa: B009
    assert html == "<div><b>verify: FAILED: ValueError: no &lt;way&gt;</b>\n</div>"
