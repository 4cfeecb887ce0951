"""Plans drawn at random among all that are legal: what proofs and tests run on."""

from __future__ import annotations

import random

from partita.compiler.ir.again import needed_again
from partita.compiler.ir.program import InputKind, Phase, info
from partita.compiler.plan.document import boxing_key
from partita.compiler.search.chosen import Chosen
from partita.compiler.search.held import Held
from partita.compiler.search.pose import Posed
from partita.compiler.search.problem import made_placement, tied_placement


def draw_choices(rng: random.Random, posed: Posed) -> list[int]:
    """Return a choice per node, drawn at random; what is tied follows.

    Where it cannot, that to which it is tied is drawn anew among what it can follow.
    """
    nodes = posed.problem.nodes
    choices = [rng.randrange(len(node.choices)) for node in nodes]
    for tie in posed.problem.ties:
        asked = [tied_placement(choice) for choice in nodes[tie.first].choices]
        wants = [c.signature.operands[0] for c in nodes[tie.second].choices]
        if asked[choices[tie.first]] not in wants:
            legal = [at for at, placement in enumerate(asked) if placement in wants]
            choices[tie.first] = rng.choice(legal)
        choices[tie.second] = wants.index(asked[choices[tie.first]])
    return choices


def draw_held(rng: random.Random, posed: Posed) -> dict[str, Held]:
    """Return how some trained parameters are held, no pin of theirs broken.

    These are none in half of all draws.
    """
    part = rng.choice((0.0, 0.0, 0.3, 1.0))
    program = posed.candidates.program
    trained = program.trained
    found: dict[str, Held] = {}
    for node, role in program.placeholders():
        is_trained = role.kind is InputKind.PARAMETER and role.name in trained
        if is_trained and role.name not in posed.pins and rng.random() < part:
            choices = posed.problem.nodes[posed.index(node)].choices
            offered = [made_placement(choice, 0) for choice in choices]
            found[role.name] = Held(rng.choice(offered), rng.choice(offered))
    return found


def draw_again(rng: random.Random, chosen: Chosen) -> set[str]:
    """Return nodes and boxings to make again for the backward.

    They are none in half of all draws; else one part in a draw, another in the next.
    """
    part = rng.choice((0.0, 0.0, 0.1, 0.5))
    chosen = chosen.whole
    forward = [
        info(node).key
        for node in chosen.program.calls()
        if info(node).phase is Phase.FORWARD
    ]
    wanted = {key for key in forward if rng.random() < part}
    again = needed_again(chosen.program, wanted)
    found = set(again)
    for (value, target), users in chosen.with_again(again).consumers().items():
        halves = {phase is Phase.FORWARD for phase in users.values()}
        if len(halves) == 2 and rng.random() < part:
            found.add(boxing_key(info(value.node).key, value.index, target))
    return found
