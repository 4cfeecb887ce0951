import io

import networkx as nx
from small_plan import UP

from partita.compiler.plan.plan import Plan


def test_graph_holds_every_node_and_output_in_order(plan: Plan) -> None:
    graph = plan.graph()
    assert list(graph) == [*plan.order, *(str(output) for output in plan.outputs)]
    assert nx.is_directed_acyclic_graph(graph)
    assert graph.nodes[UP] == {
        "kind": "parameter",
        "op": "placeholder",
        "name": "up.weight",
        "phase": "forward",
        "stage": 0,
        "module": "",
        "source": "",
        "type": "f32[6, 10]",
        "placement": "(B, S(1))",
        "seconds": 0.0,
        "flops": 0.0,
    }


def test_edge_carries_its_tensor_and_its_boxing(plan: Plan) -> None:
    graph = plan.graph()
    (edge,) = graph["down/mm/0"]["max.dim/0"].values()
    assert edge == {
        "operand": 0,
        "index": 0,
        "type": "f32[8, 4]",
        "tensor_bytes": 128,
        "placement": "(S(0), P(sum))",
        "wanted": "(S(0), B)",
        "boxing": "down/mm/0 -> (S(0), B)",
        "by": "all_reduce tp",
        "bytes": 64,
        "seconds": 4e-6,
    }
    (best,) = graph["max.dim/0"]["output:best"].values()
    assert (best["index"], best["type"], best["boxing"]) == (1, "i64[8]", "")


def test_boxings_on_the_edges_are_those_of_the_plan(plan: Plan) -> None:
    prices = {
        edge["boxing"]: edge["seconds"]
        for _, _, edge in plan.graph().edges(data=True)
        if edge["boxing"]
    }
    assert prices == {boxing.key: boxing.seconds for boxing in plan.boxings}


def test_operand_used_twice_has_two_edges(plan: Plan) -> None:
    graph = plan.graph()
    assert graph.number_of_edges("mean/0~grad/expand/0", "down/mm/0~grad/mm/1") == 1
    uses = sum(len(node.operands) for node in plan.nodes.values()) + len(plan.outputs)
    assert graph.number_of_edges() == uses


def test_exporters_of_networkx_can_write_it(plan: Plan) -> None:
    file = io.BytesIO()
    nx.write_graphml(plan.graph(), file)
    file.seek(0)
    assert set(nx.read_graphml(file, force_multigraph=True)) == set(plan.graph())
