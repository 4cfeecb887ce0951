"""What brings a parameter from its optimizer into the step: small programs of a box."""

from __future__ import annotations

from functools import cache

import torch
from tests.models import zoo
from tests.models.storage_pins import storage_pins

from partita.compiler.ir.boxing import is_box
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import InputKind, OutputKind, info
from partita.compiler.local_invariants import local as check_local
from partita.compiler.rules.table import default_rules
from partita.lowering import Lowered, capture_for
from partita.options import Options
from partita.passes.bring_parameters import bring_parameters
from partita.planning import plan
from partita.runtime.feeds import shards_of
from partita.runtime.virtual import run_all


@cache
def lowered(kind: str, bucket: int = 0) -> Lowered:
    built = zoo.mlp()
    pins = storage_pins(built, kind, 1)
    pins["down.bias"] = "storage=B; use=B"
    options = Options(pins=pins, bucket=bucket)
    found = plan(built[0], *built[1], mesh=Mesh(dp=3), options=options)
    captured = capture_for(built[0], found)
    return Lowered.of(captured, found, default_rules)


def test_each_parameter_that_is_updated_elsewhere_has_its_program() -> None:
    found = lowered("zero1")
    programs = list(bring_parameters(found.program, found.plan))
    names = [program.outputs[0].name for program in programs]
    assert names == ["up.weight", "up.bias", "down.weight"]
    for program, name in zip(programs, names, strict=True):
        ((held, role),) = program.placeholders()
        assert (role.kind, role.name) == (InputKind.PARAMETER, name)
        assert str(info(held).signature) == " -> (S(0),)"
        (boxed,) = program.calls()
        assert is_box(boxed)
        assert info(boxed).key == f"parameter:{name}~optimizer -> (B,)"
        assert program.outputs[0].kind is OutputKind.OUTPUT
    alike = lowered("zero3")
    assert list(bring_parameters(alike.program, alike.plan)) == []


def test_a_bucket_has_one_program() -> None:
    found = lowered("zero1", bucket=2**20)
    entering = [boxing.key for boxing in found.plan.boxings if boxing.enters]
    (bucket,) = (keys for keys in found.plan.buckets if set(keys) <= set(entering))
    programs = list(bring_parameters(found.program, found.plan))
    assert len(programs) == 1 + len(entering) - len(bucket)
    assert bucket in [
        tuple(info(node).key for node in program.calls()) for program in programs
    ]
    for rank in (found.bringing_at((index,)) for index in range(3)):
        calls = [call for program in rank for call in check_local(program)]
        assert len(calls) == len(programs)


def test_every_rank_gets_the_whole_of_uneven_pieces() -> None:
    found = lowered("zero1")
    weight = torch.arange(64.0 * 32).reshape(64, 32)
    ranks = [found.bringing_at((index,))[0] for index in range(3)]
    held = [shards_of(r, {(InputKind.PARAMETER, "up.weight"): weight}) for r in ranks]
    assert [next(iter(h.values())).shape[0] for h in held] == [22, 22, 20]
    for (brought,) in run_all(ranks, held):
        assert brought is not None
        assert torch.equal(brought, weight)
    calls = [check_local(rank) for rank in ranks]
    # An exchange, which takes the largest piece for each of three ranks.
    assert {str(call.payload) for (call,) in calls} == {"f32[66, 32]"}
