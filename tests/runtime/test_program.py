"""Training on two real ranks equals training the whole model in one process."""

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from local_programs import BATCH, OUT, WIDTH, Mlp, batch, local_mlp
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

from partita.compiler.errors import BadBatch, BadMesh, BadOptions
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.tensor_type import TensorType
from partita.runtime.batch import BatchSpec
from partita.runtime.groups import bind
from partita.runtime.launch import launch
from partita.runtime.program import ParallelProgram
from partita.runtime.share import StagePrograms

pytestmark = pytest.mark.dist

NUM_STEPS, MAX_NORM = 3, 0.5
NORMS = (1.0, 3.0, inf)
# mesh, hidden units, segments of their split
CASES = {
    "data": ("dp=2,tp=1", 10, ""),
    "tensor-uneven": ("dp=1,tp=2", 9, ""),
    "tensor-segmented": ("dp=1,tp=2", 9, "; 4|5"),
}


def flatten(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**dict(zip(("x", "target", "power"), args, strict=False)), **kwargs}


def make_program(case: str, model: Mlp, init: Any = None) -> ParallelProgram:
    mesh_text, hidden, segments = CASES[case]
    mesh = Mesh.parse(mesh_text)
    groups = bind(mesh, "cpu")
    local = local_mlp(mesh, groups.coordinates, hidden, segments)
    types = {"x": (BATCH, WIDTH), "target": (BATCH, OUT)}
    leaves: dict[str, Any] = {k: TensorType(v, torch.float64) for k, v in types.items()}
    spec = BatchSpec(flatten, leaves | {"power": 2})
    return ParallelProgram({0: StagePrograms(local, groups)}, model, spec, init)


def make_model(case: str) -> Mlp:
    torch.manual_seed(0)
    return Mlp(CASES[case][1])


@dataclass
class Trained:
    """What training leaves, whole."""

    losses: list[float]
    norms: list[float]
    state: dict[str, torch.Tensor]
    optimizer: dict[str, Any]
    output: torch.Tensor


def whole(tree: Any) -> Any:
    if isinstance(tree, DTensor):
        return tree.full_tensor()
    if isinstance(tree, dict):
        return {key: whole(value) for key, value in tree.items()}
    return tree


def train_on_ranks(case: str, folder: str) -> Trained:
    program = make_program(case, make_model(case))
    optimizer = torch.optim.AdamW(program.parameters(), lr=0.1, weight_decay=0.3)
    losses, norms = [], []
    for step in range(NUM_STEPS):
        x, target = batch(step)
        losses.append(program.step(x, target=target, power=2).item())
        losses.append(program.step(*batch(step + 10), 2).item())  # it accumulates
        norms.append(program.clip_grad_norm_(MAX_NORM).item())
        optimizer.step()
        optimizer.zero_grad()
    output = program(*batch(99), 2)["y"]
    saved = {
        "model": program.state_dict(),
        "optimizer": program.optimizer_state_dict(optimizer),
    }
    save(saved, checkpoint_id=f"{folder}/{case}")
    return Trained(
        losses, norms, whole(saved["model"]), whole(saved["optimizer"]), output
    )


def train_alone(case: str) -> Trained:
    model = make_model(case)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.3)
    losses: list[float] = []
    norms: list[float] = []
    for step in range(NUM_STEPS):
        for seed in (step, step + 10):
            loss = model(*batch(seed))
            loss.backward()
            losses.append(loss.item())
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        norms.append(norm.item())
        optimizer.step()
        optimizer.zero_grad()
    names = [name for name, _ in model.named_parameters()]
    saved = optimizer.state_dict()
    state = {names[i]: values for i, values in saved["state"].items()}
    groups = [
        {**g, "params": [names[i] for i in g["params"]]} for g in saved["param_groups"]
    ]
    x, _ = batch(99)
    output = model.down(torch.relu(model.up(x) + model.offset)) * model.scale
    model.steps += 1
    state_of_optimizer = {"state": state, "param_groups": groups}
    return Trained(
        losses, norms, model.state_dict(), state_of_optimizer, output.detach()
    )


def look_at(case: str) -> dict[str, Any]:
    """Return what a fresh program shows of itself."""
    model = make_model(case)
    program = make_program(case, model)
    parameters = dict(program.named_parameters())
    messages: list[str] = []
    x, target = batch()
    wrong = (x[:4], target), (x, target, 3), (x,), (x, target.float(), 2)
    for args in (*wrong, (x.numpy(), target, 2)):
        with pytest.raises(BadBatch) as bad:
            program.step(*args)
        messages.append(str(bad.value))
    with pytest.raises(BadMesh) as bad_mesh:
        bind(Mesh(dp=2, tp=2), "cpu")
    messages.append(str(bad_mesh.value))
    with pytest.raises(BadOptions) as bad_optimizer:
        program.optimizer_state_dict(torch.optim.SGD(model.parameters()))
    messages.append(str(bad_optimizer.value))
    program.loss_scale = 8.0
    program.step(x, target, 2)
    state = program.state_dict()
    unlimited = 1e9
    gradients = [p.grad for p in parameters.values() if p.grad is not None]
    return {
        "torch_norms": [
            get_total_norm(gradients, n, foreach=f).item()
            for n in NORMS
            for f in (True, None)
        ],
        "norms": [program.clip_grad_norm_(unlimited, n).item() for n in NORMS],
        "shapes": {name: tuple(p.shape) for name, p in parameters.items()},
        "frozen": [n for n, p in parameters.items() if not p.requires_grad],
        "messages": messages,
        "tied": state["up.weight"] is state["tied.weight"],
        "model_untouched": torch.equal(model.up.weight, make_model(case).up.weight),
        "scaled": whole(program.output_dtensors(x, target, 2)["y"]),
        "down_grad": parameters["down.weight"].grad,
    }


def reload(case: str, folder: str) -> list[Trained]:
    """Return what a fresh program holds after it read the checkpoint of ``case``.

    The optimizer's first step fills its state, which then is read over.
    """
    program = make_program(case, make_model(case), init=7)
    optimizer = torch.optim.AdamW(program.parameters(), lr=1.0)
    program.step(*batch(), 2)
    optimizer.step()
    found = {
        "model": program.state_dict(),
        "optimizer": program.optimizer_state_dict(optimizer),
    }
    load(found, checkpoint_id=f"{folder}/{case}")
    program.load_state_dict(found["model"])
    program.load_optimizer_state_dict(optimizer, found["optimizer"])
    again = program.optimizer_state_dict(optimizer)
    nothing = torch.zeros(0)
    return [Trained([], [], whole(program.state_dict()), whole(again), nothing)]


def work(folder: str) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for case in CASES:
        found[case] = train_on_ranks(case, folder)
        found[case, "reloaded"] = reload(case, folder)[0]
        found[case, "look"] = look_at(case)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[dict[Any, Any]]:
    return launch(f"{__file__}:work", 2, (str(folder),))


def assert_same(found: Any, want: Any) -> None:
    torch.testing.assert_close(found, want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_training_equals_one_process(ranks: list[dict[Any, Any]], case: str) -> None:
    want = train_alone(case)
    for rank in ranks:
        found = rank[case]
        assert_same(found.losses, want.losses)
        assert_same(found.norms, want.norms)
        assert set(found.state) == set(want.state)
        assert_same(found.state, want.state)
        assert_same(found.optimizer["state"], want.optimizer["state"])
        assert found.optimizer["param_groups"] == want.optimizer["param_groups"]
        assert_same(found.output, want.output)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_loads_in_one_process(
    ranks: list[dict[Any, Any]], folder: Path, case: str
) -> None:
    model = Mlp(CASES[case][1])
    state = model.state_dict()
    load({"model": state}, checkpoint_id=folder / case, no_dist=True)
    assert_same(dict(state), ranks[0][case].state)


@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_loads_on_ranks(ranks: list[dict[Any, Any]], case: str) -> None:
    for rank in ranks:
        assert_same(rank[case, "reloaded"].state, rank[case].state)
        reloaded, saved = rank[case, "reloaded"].optimizer, rank[case].optimizer
        assert_same(reloaded["state"], saved["state"])
        assert reloaded["param_groups"] == saved["param_groups"]


def test_what_a_program_shows_of_itself(ranks: list[dict[Any, Any]]) -> None:
    first, second = (rank["tensor-uneven", "look"] for rank in ranks)
    assert first["shapes"] == {
        "scale": (OUT,),
        "up.weight": (5, WIDTH),
        "up.bias": (5,),
        "down.weight": (OUT, 5),
    }
    assert second["shapes"]["up.weight"] == (4, WIDTH)
    assert ranks[1]["tensor-segmented", "look"]["shapes"]["up.weight"] == (4, WIDTH)
    assert first["frozen"] == ["scale"]
    assert first["tied"]
    assert first["model_untouched"]


def test_a_wrong_call_is_one_clear_line(ranks: list[dict[Any, Any]]) -> None:
    assert ranks[0]["data", "look"]["messages"] == [
        "batch: input 'x' is f64[4, 6]; want f64[8, 6], the whole batch of all ranks, "
        "as in the plan's example",
        "batch: input 'power' is 3; want 2, as in the plan's example",
        "batch: input 'target' is missing; want f64[8, 4]",
        "batch: input 'target' is f32[8, 4]; want f64[8, 4], the whole batch of all "
        "ranks, as in the plan's example",
        "batch: input 'x' is of type ndarray; want f64[8, 6], the whole batch of all "
        "ranks, as in the plan's example",
        "mesh dp=2,tp=2 has 4 ranks, found 2; start it with torchrun --nproc-per-node "
        "4, or with partita run",
        "optimizer: group 0 has a parameter of shape [4] that is not the program's; "
        "give it program.parameters()",
    ]


@pytest.mark.parametrize("case", CASES)
def test_every_element_counts_once_in_any_norm(
    ranks: list[dict[Any, Any]], case: str
) -> None:
    model = make_model(case)
    model(*batch()).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    want = [8 * get_total_norm(gradients, norm).item() for norm in NORMS]
    for rank in ranks:
        assert rank[case, "look"]["norms"] == pytest.approx(want)
        torch_norms = rank[case, "look"]["torch_norms"]
        assert torch_norms[::2] == torch_norms[1::2] == pytest.approx(want)


@pytest.mark.parametrize("case", CASES)
def test_the_loss_scale_scales_gradients(
    ranks: list[dict[Any, Any]], case: str
) -> None:
    model = make_model(case)
    model(*batch()).backward()
    assert model.down.weight.grad is not None
    found = ranks[0][case, "look"]["down_grad"]
    columns = {"data": slice(None), "tensor-uneven": slice(0, 5)}
    index = columns.get(case, [0, 1, 4, 5, 6])
    assert_same(found, 8 * model.down.weight.grad[:, index])
