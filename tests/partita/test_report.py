"""How a verification reads."""

from __future__ import annotations

from partita.report import Report


def test_report_shows_what_is_off_in_its_own_precision() -> None:
    report = Report(False, 0.0, {"loss": 0.0}, {"loss": 0.5}, {"loss": 0.1})
    assert str(report) == (
        "verify: FAILED: 1 tensors, largest error 0.00e+00 in double precision, "
        "5.00e-01 in the model's own\n"
        "  0.00e+00  loss\n"
        "  5.00e-01  loss in its own precision"
    )
