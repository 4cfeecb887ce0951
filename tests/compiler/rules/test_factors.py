import pytest

from partita.compiler.errors import BadRule
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.rules.factors import Factors, Part, read
from partita.compiler.rules.rule import Call, Rule, RuleSet


def factors(
    dims: str, operands: str, results: str, linear: str = "", args: tuple[int, ...] = ()
) -> Factors:
    def types(text: str) -> tuple[TensorType | None, ...]:
        parts = [part.strip() for part in text.split(";") if part.strip()]
        return tuple(None if p == "-" else TensorType.parse(p) for p in parts)

    given = tuple(t for t in types(operands) if t is not None)
    call = Call("op", args, (), given, types(results))
    return read(Rule("op", dims, linear), call)


def test_same_name_is_the_same_factor() -> None:
    found = factors("m k, k n -> m n", "f32[2, 3]; f32[3, 4]", "f32[2, 4]", "0*1")

    assert found.operands == (
        (Part("m", 0, 2), Part("k", 1, 3)),
        (Part("k", 0, 3), Part("n", 1, 4)),
    )
    assert found.results == ((Part("m", 0, 2), Part("n", 1, 4)),)
    assert found.sizes == {"m": 2, "k": 3, "n": 4}
    assert found.linear == "0*1"


def test_star_broadcasts_from_the_right() -> None:
    found = factors("*, * -> *", "f32[2, 1, 4]; f32[3, 1]", "f32[2, 3, 4]")

    assert found.operands == ((Part("*2", 0, 2), Part("*0", 2, 4)), (Part("*1", 0, 3),))
    assert found.sizes == {"*2": 2, "*1": 3, "*0": 4}


def test_named_factor_leaves_a_dim_of_size_one_alone() -> None:
    found = factors("b s, b s -> b s", "f32[4, 6]; f32[1, 6]", "f32[4, 6]")

    assert found.operands[1] == (Part("s", 1, 6),)


def test_product_is_nested_outermost_first() -> None:
    found = factors("(a b:3 c) -> a b c", "f32[24]", "f32[2, 3, 4]")

    assert found.operands == (
        (
            Part("a", 0, 2, 1, 12),
            Part("b", 0, 3, 2, 4),
            Part("c", 0, 4, 6, 1),
        ),
    )


def test_one_unknown_size_of_a_product_follows() -> None:
    assert factors("(g:2 i) -> g i", "f32[8]", "f32[2, 4]").sizes == {"g": 2, "i": 4}


def test_pieces_are_sizes_of_runs() -> None:
    found = factors("b n{6|2} -> b n{6}, b n{2}", "f32[4, 8]", "f32[4, 6]; f32[4, 2]")

    assert found.operands[0][1] == Part("n", 1, 8, pieces=(6, 2))
    assert found.results[1] == (Part("b", 0, 4), Part("n", 1, 2, pieces=(2,)))
    assert found.sizes == {"b": 4, "n": 8}


def test_whole_factors_have_a_size_but_are_not_offered() -> None:
    found = factors("m k^, k n -> m n", "f32[2, 3]; f32[3, 4]", "f32[2, 4]")

    assert found.sizes == {"m": 2, "n": 4}
    assert found.all_sizes["k"] == 3


@pytest.mark.parametrize("text", ["a ? -> a ?", "a 1 -> a 1"])
def test_dims_without_a_factor_have_no_part(text: str) -> None:
    assert factors(text, "f32[2, 3]", "f32[2, 3]").results == ((Part("a", 0, 2),),)


def test_question_mark_alone_is_for_all_dims() -> None:
    assert factors("?, * -> ?", "f32[2, 3]; f32[2]", "f32[]").operands[0] == ()


def test_no_operands() -> None:
    assert factors(" -> *", "", "f32[2, 3]").operands == ()


def test_result_that_is_no_tensor_has_no_parts() -> None:
    assert factors("a -> a, a", "f32[2]", "f32[2]; -").results[1] is None


def test_result_that_is_the_same_on_each_part() -> None:
    found = factors("a b -> a =b, b", "f32[2, 3]", "f32[2]; f32[3]")

    assert found.same == (frozenset("b"), frozenset())


def test_only_floating_operands_of_floating_results_may_be_partial() -> None:
    assert factors("*, * -> *", "f32[2]; i64[2]", "f32[2]").partial == {0}
    assert factors("*, * -> *", "f32[2]; f32[2]", "i64[2]").partial == frozenset()


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ("a b", "rule 'a b' has no '->'"),
        ("a -> a", "rule op 'a -> a': 'a' has 1 dims, the tensor 2"),
        ("a b, a b -> a b", "is for 2 operands and 1 results; the call has 1 and 1"),
        ("a !b -> a b", "'!b' is no factor"),
        ("a b -> b a", "factor b is 3 and 2"),
        ("(a:4 c:2) b -> (a c) b", "2 is not the product of its factors"),
        ("(a c) b -> (a c) b", "the size of a is unknown"),
    ],
)
def test_text_that_does_not_fit_is_refused(dims: str, message: str) -> None:
    with pytest.raises(BadRule) as caught:
        factors(dims, "f32[2, 3]", "f32[2, 3]")

    assert message in str(caught.value)


def test_later_row_replaces_an_earlier_one() -> None:
    first, second = Rule("op", "* -> *"), Rule("op", "? -> ?")
    other = Rule("other", "* -> *")

    rules = RuleSet.of((other, first))

    assert rules.with_(second).rows == (second, other)
    assert rules.get("op") is first


def test_chunks_of_a_dim_are_the_factor() -> None:
    found = factors("(r~:4 m^:3) -> r~&:4", "f32[10]", "f32[4]")

    assert found.operands == ((Part("r", 0, 10, chunks=4),),)
    assert found.results == ((Part("r", 0, 4, chunks=4),),)
    assert found.sizes == {"r": 4}
    assert found.all_sizes == {"r": 4, "m": 3}
    assert found.moved == (True,)


def test_chunks_may_be_elements_of_pieces() -> None:
    found = factors("r~:4{1|4} -> r~:4", "f32[5]", "f32[10]")

    assert found.operands == ((Part("r", 0, 5, pieces=(1, 4), chunks=4),),)


def test_parts_that_go_by_their_number_are_told_apart() -> None:
    found = factors("a!~ b! -> a!~ b!", "f32[4, 6]", "f32[4, 6]")

    assert found.expanded == {"a", "b"}
    assert found.chunked == {"a"}
