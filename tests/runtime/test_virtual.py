import weakref
from typing import Any

import pytest
import torch
from local_programs import Mlp, batch, c10d, collective_program, local_mlp
from torch import fx, nn

from partita.compiler.errors import InvariantViolation
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import InputKind, InputRole, OutputKind, OutputRole
from partita.runtime.feeds import FeedKey
from partita.runtime.shards import assemble, take_shard
from partita.runtime.virtual import Outputs, run_all

X: FeedKey = (InputKind.INPUT, "x")


def run_collectives(*per_rank: list[tuple[Any, ...]]) -> list[Outputs]:
    """Run each rank's own list of collectives on the vector 10 * rank + [0..3]."""
    mesh = Mesh(tp=len(per_rank))
    programs = [
        collective_program(mesh, (rank,), *calls) for rank, calls in enumerate(per_rank)
    ]
    feeds = [{X: 10.0 * rank + torch.arange(4.0)} for rank in range(mesh.size)]
    return run_all(programs, feeds)


def feeds_of(local: LocalProgram, model: nn.Module) -> dict[FeedKey, Any]:
    x, target = batch()
    values = {"x": x, "target": target, **dict(model.named_buffers())}
    values |= {name: p.detach() for name, p in model.named_parameters()}
    return {
        (role.kind, role.name): take_shard(
            values[role.name], placement, local.mesh, local.coordinates
        )
        for role, placement in zip(local.inputs, local.input_placements, strict=True)
        if role.name in values and placement is not None
    }


@pytest.mark.parametrize(
    ("mesh", "hidden", "segments"),
    [
        (Mesh(dp=2, tp=2), 10, ""),
        (Mesh(dp=1, tp=3), 10, ""),
        (Mesh(dp=2, tp=2), 10, "; 4|6"),
        (Mesh(dp=2, tp=4), 9, "; 4|5"),
    ],
)
def test_all_ranks_together_equal_the_model(
    mesh: Mesh, hidden: int, segments: str
) -> None:
    torch.manual_seed(0)
    model = Mlp(hidden)
    programs = [local_mlp(mesh, at, hidden, segments) for at in mesh.all_coordinates()]
    results = run_all(programs, [feeds_of(local, model) for local in programs])

    loss = model(*batch())
    loss.backward()
    want = {"loss": loss.detach(), "steps": model.steps}
    want |= {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    entries = zip(
        programs[0].outputs,
        programs[0].output_types,
        programs[0].output_placements,
        zip(*results, strict=True),
        strict=True,
    )
    checked = 0
    for role, type_, placement, shards in entries:
        if role.name in want:
            assert type_ is not None
            assert placement is not None
            found = assemble(shards, type_.shape, placement, mesh)
            torch.testing.assert_close(found, want[role.name], rtol=1e-12, atol=1e-12)
            checked += 1
    assert checked == 5


def test_each_collective_gives_what_it_means() -> None:
    calls = [
        (c10d.all_reduce.default, "sum", "stage0/tp"),
        (c10d.all_reduce.default, "max", "stage0/tp"),
        (c10d.all_reduce.default, "min", "stage0/tp"),
        (c10d.all_gather_into_tensor.default, 2, "stage0/tp"),
        (c10d.reduce_scatter_tensor.default, "sum", 2, "stage0/tp"),
    ]
    first = [*calls, (c10d.all_to_all_single.default, [3, 2], [3, 1], "stage0/tp")]
    second = [*calls, (c10d.all_to_all_single.default, [1, 2], [2, 2], "stage0/tp")]
    results = run_collectives(first, second)
    assert [[x.tolist() for x in rank if x is not None] for rank in results] == [
        [
            [10.0, 12.0, 14.0, 16.0],
            [10.0, 11.0, 12.0, 13.0],
            [0.0, 1.0, 2.0, 3.0],
            [0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0],
            [10.0, 12.0],
            [0.0, 1.0, 2.0, 10.0, 11.0],
        ],
        [
            [10.0, 12.0, 14.0, 16.0],
            [10.0, 11.0, 12.0, 13.0],
            [0.0, 1.0, 2.0, 3.0],
            [0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0],
            [14.0, 16.0],
            [3.0, 12.0, 13.0],
        ],
    ]


def test_different_ops_at_one_place_are_told_apart() -> None:
    with pytest.raises(InvariantViolation) as raised:
        run_collectives(
            [(c10d.all_reduce.default, "sum", "stage0/tp")],
            [(c10d.all_gather_into_tensor.default, 2, "stage0/tp")],
        )
    assert str(raised.value) == (
        "collectives over stage0/tp do not match, the ops differ: rank 0 calls "
        "all_reduce(sum) of f32[4] at 'all_reduce_default'; rank 1 calls "
        "all_gather_into_tensor of f32[4] at 'all_gather_into_tensor_default'"
    )


def test_uneven_splits_that_do_not_meet_are_told() -> None:
    with pytest.raises(InvariantViolation, match="member 0 sends 1 to member 1, which"):
        run_collectives(
            [(c10d.all_to_all_single.default, [3, 2], [3, 1], "stage0/tp")],
            [(c10d.all_to_all_single.default, [2, 2], [2, 2], "stage0/tp")],
        )


def test_a_call_that_one_rank_never_makes_is_a_deadlock() -> None:
    with pytest.raises(InvariantViolation) as raised:
        run_collectives([(c10d.all_reduce.default, "sum", "stage0/tp")], [])
    assert str(raised.value) == (
        "deadlock: rank 0 calls all_reduce(sum) of f32[4] at 'all_reduce_default' and "
        "waits; over stage0/tp no call has come from rank 1"
    )


def single(graph: fx.Graph, num_outputs: int = 1) -> LocalProgram:
    return LocalProgram(
        graph_module=fx.GraphModule(nn.Module(), graph),
        inputs=(InputRole(InputKind.INPUT, "x"),),
        outputs=(OutputRole(OutputKind.OUTPUT, "y"),) * num_outputs,
        input_types=(None,),
        output_types=(None,),
        input_placements=(None,),
        output_placements=(None,),
        mesh=Mesh(tp=1),
        coordinates=(0,),
    )


def test_a_result_used_without_a_wait_is_told() -> None:
    graph = fx.Graph()
    reduce = (graph.placeholder("x"), "sum", "stage0/tp")
    reduced = graph.call_function(c10d.all_reduce.default, reduce)
    graph.output((graph.call_function(torch.ops.aten.neg.default, (reduced,)),))
    with pytest.raises(InvariantViolation, match="'neg_default' uses the result of"):
        run_all([single(graph)], [{X: torch.ones(4)}])


def test_writing_in_place_is_refused() -> None:
    graph = fx.Graph()
    args = (graph.placeholder("x"), 1)
    graph.output((graph.call_function(torch.ops.aten.add_.Tensor, args),))
    with pytest.raises(InvariantViolation, match="writes in place"):
        run_all([single(graph)], [{X: torch.ones(4)}])


def test_an_op_that_fails_names_its_rank_and_node() -> None:
    graph = fx.Graph()
    args = (graph.placeholder("x"), [3, 3])
    graph.output((graph.call_function(torch.ops.aten.view.default, args),))
    with pytest.raises(RuntimeError, match="shape") as raised:
        run_all([single(graph)], [{X: torch.ones(4)}])
    assert raised.value.__notes__[0].startswith("on rank 0, at 'view_default': ")


def test_values_are_freed_after_their_last_use() -> None:
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0

    def next_value(x: torch.Tensor) -> torch.Tensor:
        nonlocal most
        result = x + 1
        alive.append(weakref.ref(result))
        most = max(most, sum(ref() is not None for ref in alive))
        return result

    graph = fx.Graph()
    value = graph.placeholder("x")
    for _ in range(8):
        value = graph.call_function(next_value, (value,))
    graph.output((value,))
    ((result,),) = run_all([single(graph)], [{X: torch.zeros(())}])
    assert result is not None
    assert result.item() == 8
    assert most == 2


def test_ranks_of_two_stages_have_groups_of_their_own() -> None:
    mesh = Mesh(tp=2)
    programs = [
        collective_program(
            mesh, (rank,), (c10d.all_reduce.default, "sum", f"stage{stage}/tp")
        )
        for stage in range(2)
        for rank in range(2)
    ]
    feeds = [{X: torch.full((1,), 10.0**rank)} for rank in range(4)]
    results = run_all(programs, feeds, stages=[0, 0, 1, 1])
    assert [x.item() for (x,) in results if x is not None] == [11, 11, 1100, 1100]
