import weakref
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from local_programs import Mlp, batch
from torch import nn

import partita as pt
from partita.compiler.errors import BadOptions
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.runtime.groups import Groups, bind
from partita.runtime.inventory import take_inventory
from partita.runtime.launch import launch
from partita.runtime.materialize import Init, check_init, materialize
from partita.runtime.shards import assemble

MESH = Mesh(tp=2)


def materialize_rank(
    model: nn.Module, init: Init, rank: int, placement: str = "S(0)"
) -> dict[str, torch.Tensor]:
    groups = Groups(MESH, (rank,), torch.device("cpu"), cast(Any, None), {})
    kept = take_inventory(model)
    split, everywhere = Placement.parse(placement), Placement.parse("B")
    placed = {e.name: split if e.tensor.ndim else everywhere for e in kept}
    return materialize(model, kept, placed, groups, init).shards


def assembled(model: nn.Module, init: Init) -> dict[str, torch.Tensor]:
    ranks = [materialize_rank(model, init, rank) for rank in range(2)]
    types = {entry.name: entry.type for entry in take_inventory(model)}
    return {
        name: assemble(
            [rank[name] for rank in ranks],
            type_.shape,
            Placement.parse("S(0)" if type_.ndim else "B"),
            MESH,
        )
        for name, type_ in types.items()
    }


class Net(nn.Module):
    """Modules of several kinds, with a buffer that only its module can compute."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 6)
        self.inner = nn.ModuleList([nn.Linear(6, 6), nn.BatchNorm1d(6)])
        self.positions = Positions()
        self.head = nn.Linear(6, 8, bias=False)
        self.head.weight = self.embed.weight


class Positions(nn.Module):
    """A buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("index", torch.empty(4, dtype=torch.int64), False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Count."""
        cast(torch.Tensor, self.index).copy_(torch.arange(4))


class Pretrained(nn.Module):
    """Initialised as transformers do: the model goes over its modules, then itself."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2)
        self.norm = nn.LayerNorm(4)
        self.up = nn.Linear(4, 4)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.constant_(module.weight, 2.0)
        if isinstance(module, Pretrained):
            nn.init.constant_(module.up.bias, 3.0)


def on_meta() -> Net:
    with torch.device("meta"):
        return Net()


def test_the_models_own_values_are_sliced() -> None:
    model = Mlp()
    found = assembled(model, None)
    for entry in take_inventory(model):
        assert torch.equal(found[entry.name], entry.tensor)


def test_shards_share_no_memory_with_the_model() -> None:
    model = Mlp()
    before = model.scale.clone()
    for rank in range(2):
        for shard in materialize_rank(model, None, rank, "B").values():
            shard.fill_(7)
    assert torch.equal(model.scale, before)


def test_a_meta_model_needs_a_source_of_values() -> None:
    with pytest.raises(BadOptions) as raised:
        materialize_rank(on_meta(), None, 0)
    assert str(raised.value) == (
        "init: parameter 'embed.weight' is on the meta device and has no values; give "
        "a seed, a state dict or a callable"
    )


def test_a_seed_gives_each_modules_own_initialisation_on_every_rank() -> None:
    found = assembled(on_meta(), 3)
    again = assembled(on_meta(), 3)
    torch.manual_seed(3)
    want = Net()
    for name in ("embed.weight", "inner.0.weight", "inner.0.bias", "inner.1.weight"):
        assert torch.equal(found[name], again[name])
        assert torch.equal(found[name], want.get_parameter(name))
    assert not torch.equal(
        found["embed.weight"], assembled(on_meta(), 4)["embed.weight"]
    )
    assert torch.equal(found["inner.1.running_var"], torch.ones(6))
    assert found["positions.index"].tolist() == [0, 1, 2, 3]


def test_modules_around_a_module_have_their_say() -> None:
    with torch.device("meta"):
        model = Pretrained()
    found = assembled(model, 0)
    assert found["up.weight"].unique().tolist() == [2.0]
    assert found["up.bias"].unique().tolist() == [3.0]
    assert found["norm.weight"].unique().tolist() == [1.0]
    # A linear layer's bias is random; the attention around this one sets it to zero.
    assert found["attention.out_proj.bias"].unique().tolist() == [0.0]
    assert found["attention.in_proj_weight"].unique().numel() > 1


def test_a_seed_leaves_the_model_and_the_global_generator_alone() -> None:
    model, state = Net(), torch.random.get_rng_state()
    values = {name: p.clone() for name, p in model.named_parameters()}
    found = assembled(model, 3)
    assert torch.equal(state, torch.random.get_rng_state())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, values[name])
    assert not torch.equal(found["inner.0.weight"], values["inner.0.weight"])


def test_a_state_dict_is_sliced_and_checked() -> None:
    state = Net().state_dict()
    found = assembled(on_meta(), state)
    for name in ("embed.weight", "inner.0.bias", "inner.1.running_mean"):
        assert torch.equal(found[name], state[name])
    assert found["positions.index"].tolist() == [0, 1, 2, 3]
    tied = {name: x for name, x in state.items() if name != "embed.weight"}
    assert torch.equal(
        assembled(on_meta(), tied)["embed.weight"], state["embed.weight"]
    )
    with pytest.raises(
        BadOptions, match=r"^init: the state dict has no 'inner.0.bias'$"
    ):
        assembled(on_meta(), {k: x for k, x in state.items() if k != "inner.0.bias"})
    with pytest.raises(BadOptions, match=r"^init: the model has no 'extra'$"):
        assembled(on_meta(), {**state, "extra": torch.zeros(1)})
    with pytest.raises(BadOptions, match=r"'inner.0.bias' has shape \[7\]; want \[6\]"):
        assembled(on_meta(), {**state, "inner.0.bias": torch.zeros(7)})


def test_what_nobody_initialises_is_named() -> None:
    with torch.device("meta"):
        model = Mlp()
    with pytest.raises(BadOptions, match=r"^init: 'scale' is on the meta device and"):
        materialize_rank(model, 0, 0)


def test_a_rank_never_holds_two_full_tensors() -> None:
    alive = most = 0

    def free(num_bytes: int) -> None:
        nonlocal alive
        alive -= num_bytes

    def make(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        nonlocal alive, most
        full = torch.ones(shape, dtype=dtype)
        alive += full.nbytes
        most = max(most, alive)
        weakref.finalize(full.untyped_storage(), free, full.nbytes)
        return full

    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))
    shards = materialize_rank(model, make, 1)
    assert sum(shard.untyped_storage().nbytes() for shard in shards.values()) == (
        8 * (64 + 1) * 64 * 4 // 2
    )
    assert most == 64 * 64 * 4
    assert alive == 0


class Versioned(nn.Linear):
    """Saves a version beside its parameters."""

    def get_extra_state(self) -> dict[str, int]:
        """Return what is saved beside tensors."""
        return {"version": 3}

    def set_extra_state(self, state: Any) -> None:
        """Take it over."""


def test_what_a_module_saves_beside_tensors_is_passed_over() -> None:
    model = nn.Sequential(Versioned(4, 4))
    state = model.state_dict()
    assert "0._extra_state" in state
    assert torch.equal(assembled(model, state)["0.weight"], state["0.weight"])


def test_a_function_that_returns_no_tensor_is_refused() -> None:
    def make(*_: Any) -> Any:
        return None

    with pytest.raises(BadOptions) as refused:
        materialize_rank(Mlp(), make, 0)
    assert str(refused.value) == (
        "init: what it returned for 'scale' is of type NoneType; want a tensor"
    )


def test_a_state_dict_of_no_tensors_is_refused() -> None:
    bind(Mesh(tp=1), "cpu")
    state: Any = {**Mlp().state_dict(), "scale": [1.0]}
    with pytest.raises(BadOptions) as refused:
        check_init(state)
    assert str(refused.value) == "init: 'scale' is of type list; want a tensor"


def begin_with_the_first_ranks_file(document: Any, folder: str) -> str:
    plan = pt.Plan.from_dict(document)
    program = pt.compile(Mlp(), plan)
    if dist.get_rank() == 0:
        torch.save(program.state_dict(), f"{folder}/saved.pt")
    dist.barrier()
    state = torch.load(f"{folder}/saved.pt", weights_only=False)
    with pytest.raises(BadOptions) as refused:
        pt.compile(Mlp(), plan, init=state)
    return str(refused.value)


@pytest.mark.dist
def test_all_ranks_refuse_a_state_dict_of_one_ranks_shards(tmp_path: Path) -> None:
    options = pt.Options(pins={"up.weight": "(S(0))"})
    plan = pt.plan(Mlp(), *batch(), 2, mesh="tp=2", options=options)
    what = f"{__file__}:begin_with_the_first_ranks_file"
    arguments = plan.to_dict(), str(tmp_path)
    assert launch(what, 2, arguments, timeout_s=60) == 2 * [
        "init: 'up.weight' of shape [10, 6] was saved by rank 0 with its own shard, "
        "and this is rank 1; want it saved by torch.distributed.checkpoint, or its "
        "full_tensor()"
    ]
