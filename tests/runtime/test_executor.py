from local_programs import local_mlp

from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import OutputKind, op_name
from partita.runtime.executor import only


def num_collectives(local: LocalProgram) -> int:
    nodes = local.graph_module.graph.nodes
    return sum("all_reduce" in op_name(node) for node in nodes)


def test_without_gradients_the_backward_falls_away() -> None:
    whole = local_mlp(Mesh(dp=2, tp=2), (0, 0))
    forward = only(whole, (OutputKind.LOSS, OutputKind.MUTATED_BUFFER))
    assert [role.name for role in forward.outputs] == ["loss", "steps"]
    assert (num_collectives(whole), num_collectives(forward)) == (5, 2)
    assert forward.inputs == whole.inputs
    assert num_collectives(only(whole, (OutputKind.OUTPUT,))) == 1
