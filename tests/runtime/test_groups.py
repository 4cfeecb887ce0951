"""Groups are found under names that do not depend on rank, run or what came before."""

from collections.abc import Mapping

import pytest

from partita.compiler.capture.torch_private import ranks_of_group
from partita.compiler.ir.mesh import Mesh
from partita.runtime.groups import bind, bind_stages
from partita.runtime.launch import launch

pytestmark = pytest.mark.dist

Told = dict[str, tuple[str, tuple[int, ...]]]


def names() -> list[Told]:
    """Return, of a mesh bound twice and of stages, each group's name and ranks."""
    whole, pair = Mesh(dp=3, tp=1), Mesh(dp=2)
    stages = bind_stages(Mesh(pp=3), [(pair, (0, 1)), (pair, (0, 2))])
    return [
        *(told(bind(whole).names) for _ in range(2)),
        *(told(groups.names) for groups in stages.values()),
    ]


def told(names: Mapping[str, str]) -> Told:
    return {key: (name, ranks_of_group(name)) for key, name in names.items()}


def test_names_are_alike_on_all_ranks_and_of_one_group_each() -> None:
    found = launch(f"{__file__}:names", 3)
    for rank, (first, again, *_) in enumerate(found):
        assert first == {
            "stage0/dp": ("partita/dp=3,tp=1/dp/0", (0, 1, 2)),
            "stage0/tp": ("partita/dp=3,tp=1/tp/0", (rank,)),
        }
        assert again == first
    assert [stages for _, _, *stages in found] == [
        [
            {"stage0/dp": ("partita/dp=2/dp/0", (0, 1))},
            {"stage1/dp": ("partita/dp=2/dp/1", (0, 2))},
        ],
        [{"stage0/dp": ("partita/dp=2/dp/0", (0, 1))}],
        [{"stage1/dp": ("partita/dp=2/dp/0", (0, 2))}],
    ]
