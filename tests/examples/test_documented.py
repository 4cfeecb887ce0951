import pytest
from tests.examples.documented import assert_prints, expected_output

PRINTED = """\
step     8.66 ms predicted (compute 6.4 ms)

name        type         bytes
----------  -----------  -----
up.weight   f32[16, 8]   3 KiB
"""


def test_figures_widths_and_left_out_lines_may_differ() -> None:
    assert_prints("step 12 s predicted (compute 7.1e-05 us)\n...", PRINTED)
    assert_prints("...\nname type bytes\n--- --- ---\nup... f32[16, 8] 12 B", PRINTED)


def test_order_that_depends_on_figures_may_differ() -> None:
    assert_prints("of (a 1 s, b 2 s)", "of (b 3.1 s, a 2 s)")
    assert_prints(
        "worst\n  1.5e-7  a\n  1.2e-7  b\n", "worst\n  9e-8  b\n  2.5e-9  a\n"
    )


@pytest.mark.parametrize(
    "wrong",
    ["step 12 s taken\n...", "...\nup.weight f32[16, 9] 3 KiB", "step 8.66 ms..."[:4]],
)
def test_words_shapes_and_ends_may_not(wrong: str) -> None:
    with pytest.raises(AssertionError):
        assert_prints(wrong, PRINTED)


def test_expected_output_follows_the_command() -> None:
    docstring = "Do it.\n\n$ python it.py\ndone 1\ndone 2\n"

    assert expected_output(docstring) == "done 1\ndone 2\n"
