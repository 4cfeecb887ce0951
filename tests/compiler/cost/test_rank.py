"""What one rank's calls make, each looked at once."""

import torch

from partita.compiler.cost.rank import Rank
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.signature import Signature
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.document import Node

WHOLE = TensorType((8, 6), torch.float32)
SPLIT, BROADCAST = Placement.parse("S(0)"), Placement.parse("B")


def relu(placement: Placement) -> Node:
    return Node("aten.relu.default", (WHOLE,), Signature((placement,), (placement,)))


def test_shards_that_are_alike_are_one_object() -> None:
    rank = Rank(Mesh(tp=2), (0,), "cpu")
    local = rank.type(WHOLE, SPLIT)
    assert local == TensorType((4, 6), torch.float32)
    assert rank.shard(local) is rank.shard(TensorType((4, 6), torch.float32), (6, 1))
    assert rank.shard(local) is not rank.shard(local, (1, 4))


def test_equal_calls_of_operands_that_lie_alike_are_looked_at_once() -> None:
    rank = Rank(Mesh(tp=2), (0,), "cpu")
    split, whole = rank.shard(rank.type(WHOLE, SPLIT)), rank.shard(WHOLE)
    made = rank.made(relu(SPLIT), [split])
    assert rank.made(relu(SPLIT), [split]) is made
    assert [(r.shard, r.num_bytes, r.operand) for r in made.results] == [
        (split, 96, None)
    ]
    assert rank.made(relu(BROADCAST), [whole]).results[0].num_bytes == 192
    turned = rank.shard(split.type, (1, 4))
    assert rank.made(relu(SPLIT), [turned]).results[0].shard is turned


def test_cuda_takes_whole_blocks() -> None:
    rank = Rank(Mesh(tp=2), (0,), "cuda")
    split = rank.shard(rank.type(WHOLE, SPLIT))
    assert rank.made(relu(SPLIT), [split]).results[0].num_bytes == 512


def test_one_kernel_casts_what_it_reads() -> None:
    rank = Rank(Mesh(tp=2), (0,), "cpu")
    narrow = TensorType(WHOLE.shape, torch.bfloat16)
    signature = Signature((SPLIT, SPLIT), (SPLIT,))
    add = Node("aten.add.Tensor", (WHOLE,), signature)
    given = [rank.shard(rank.type(type_, SPLIT)) for type_ in (WHOLE, narrow)]
    assert rank.made(add, given).workspace_bytes == 4 * 6 * 4
    assert rank.made(add, given, is_fused=True).workspace_bytes == 0
