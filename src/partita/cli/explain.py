"""``partita explain``: why one tensor is placed as it is."""

from __future__ import annotations

import argparse

from partita.cli.command import OK, Command, add_json, add_plan, print_json
from partita.compiler.plan.explain import find_key, parameter_of
from partita.compiler.plan.plan import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Ask for the plan and the name."""
    add_plan(parser)
    parser.add_argument(
        "name",
        metavar="NAME",
        help="a parameter, input, node, boxing or output",
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print the reasons, or the part of the document that holds them."""
    plan = Plan.load(options.plan)
    if not options.json:
        print(plan.explain(options.name))
        return OK
    key = find_key(plan, options.name)
    document = plan.to_dict()
    node = plan.nodes.get(key)
    parameter = key if node is None else parameter_of(node)
    print_json(
        {
            "key": key,
            "node": document["nodes"].get(key),
            "expanded": document["expanded"].get(key),
            "parameter": document["parameters"].get(parameter),
            "boxings": [
                boxing
                for boxing in document["boxings"]
                if key in (boxing["producer"], *boxing["consumers"])
            ],
        }
    )
    return OK


COMMAND = Command(
    name="explain",
    summary="say why a tensor is placed as it is, and what it would cost otherwise",
    example="partita explain gpt2.plan.json transformer.h.0.mlp.c_fc.weight",
    add_arguments=add_arguments,
    run=run,
)
