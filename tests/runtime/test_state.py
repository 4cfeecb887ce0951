"""What a program keeps is written in place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.runtime.state import write


def test_a_shard_takes_its_own_memory_by_other_strides() -> None:
    groups: Any = SimpleNamespace(mesh=Mesh(tp=1), coordinates=(0,))
    shard = torch.tensor([[1.0, 2.0]]).as_strided((1, 2), (8, 1))
    write(shard, shard.view(-1).view(1, 2), Placement.parse("(S(1),)"), groups)
    assert shard.tolist() == [[1.0, 2.0]]
