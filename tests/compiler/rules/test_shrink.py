"""Small calls keep what a rule may depend on."""

from tests.compiler.rules.custom_ops import call

from partita.compiler.rules.shrink import shrunk


def shapes(*types: str | int) -> str:
    small = shrunk(call("any", types[:-1], str(types[-1])))
    return ", ".join(map(str, (*small.operands, *small.results)))


def test_equal_sizes_stay_equal_and_others_different() -> None:
    found = shapes("f32[512, 768]", "f32[768, 3072]", "f32[512, 3072]")
    assert found == "f32[8, 12], f32[12, 16], f32[8, 16]"


def test_small_sizes_and_stated_ones_stay() -> None:
    assert shapes("f32[4, 768, 1]", 768, "f32[4, 768, 1]") == ", ".join(
        ["f32[4, 768, 1]"] * 2
    )


def test_no_size_grows_or_meets_another() -> None:
    assert shapes("f32[8, 9, 1000]", "f32[9]") == "f32[8, 9, 16], f32[9]"


def test_arguments_are_rewritten_with_the_operands() -> None:
    small = shrunk(call("any", ("f32[512]", 1.5), "f32[512]"))
    assert small.args == (small.operands[0], 1.5)
