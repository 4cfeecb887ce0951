import pytest

from partita.compiler.errors import BadOptions
from partita.runtime.compilation import Compilation


def test_a_way_to_run_is_read_by_its_name() -> None:
    assert [Compilation.parse(each.value) for each in Compilation] == list(Compilation)


def test_another_way_to_run_is_one_clear_line() -> None:
    with pytest.raises(BadOptions) as bad:
        Compilation.parse("fast")
    assert (
        str(bad.value)
        == "compilation is 'fast'; want eager, regions, whole, cuda-graph"
    )
