"""``plan``: from a model to a plan, or a message that says what to change."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.compiler.capture import small_models as small
from tests.models import zoo
from tests.models.pipelines import FEW_CALLS, PIPELINES
from torch import Tensor, nn

from partita import Mesh, Options, Plan, plan, verify
from partita.compiler.errors import BadMesh, BadOptions, CaptureFailed, NoSolution
from partita.compiler.hardware.profile import Hardware, load_hardware
from partita.compiler.plan.document import LossKind
from partita.pipelines.pipeline_search import PipelineSearch


def test_mesh_may_be_text_or_a_number_of_devices() -> None:
    model, args, _ = zoo.mlp()
    assert plan(model, *args, mesh="dp=2,tp=2").mesh == Mesh(dp=2, tp=2)
    assert plan(model, *args, mesh=Mesh(tp=2)).mesh == Mesh(tp=2)
    assert plan(model, *args, devices=2).mesh.size == 2


@pytest.mark.parametrize("given", [{}, {"mesh": Mesh(tp=2), "devices": 2}])
def test_one_of_mesh_and_devices_is_needed(given: dict[str, Any]) -> None:
    model, args, _ = zoo.mlp()
    with pytest.raises(BadMesh) as caught:
        plan(model, *args, **given)
    assert str(caught.value) == "give either mesh=Mesh(dp=2, ...) or devices=N"


@pytest.mark.parametrize(
    ("pin", "meshes"), [("on tp", ["dp=2,tp=2"]), ("(S(0),)", ["dp=4"])]
)
def test_devices_form_meshes_that_the_pins_fit(pin: str, meshes: list[str]) -> None:
    model, args, _ = zoo.mlp()
    options = Options(pins={"up.weight": pin}, schedule="sequential")
    found = plan(model, *args, devices=4, options=options)
    assert [str(found.mesh)] == meshes
    assert "S(" in str(found.parameters["up.weight"].placements.storage)


class Residual(nn.Module):
    """Layers of a norm and two products, around each of which is a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)
            )
            for _ in range(2)
        )
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of ``x`` ``[batch, 64]``."""
        for layer in self.layers:
            x = x + layer(x)
        return nn.functional.cross_entropy(self.head(x), labels)


def test_meshes_are_compared_by_what_is_planned_in_the_end() -> None:
    """Where memory is slow, a plan takes longer in buckets than one by one."""
    profile = load_hardware("cpu-gloo").to_dict()
    slow = profile["device"]
    slow["flops_per_s"] = dict.fromkeys(slow["flops_per_s"], 1e6)
    slow |= {"memory_bytes_per_s": 1e6, "launch_s": 1e-9, "ops": {}}
    for cost in profile["links"][0]["costs"].values():
        cost |= {"alpha_s": 1e-8, "bytes_per_s": 1e10}
    options = Options(hardware=Hardware.from_dict(profile), schedule="sequential")
    batch = torch.randn(64, 64), torch.randint(10, (64,))
    found = plan(Residual(), *batch, devices=4, options=options)
    seconds = [tried.seconds for tried in found.search.tried]
    assert len(seconds) > 1
    assert found.predicted.seconds == min(s for s in seconds if s is not None)


def test_pins_that_no_mesh_fits_are_refused() -> None:
    model, args, _ = zoo.mlp()
    with pytest.raises(BadOptions) as caught:
        plan(model, *args, devices=2, options=Options(pins={"up": "on tp"}))
    assert str(caught.value) == (
        "pins: they name axes, or as many, that no mesh of 2 ranks has (dp=2); give a "
        "mesh in place of devices"
    )


def test_model_on_meta_is_planned_like_a_real_one() -> None:
    model, args, _ = zoo.mlp()
    with torch.device("meta"):
        meta, meta_args, _ = zoo.mlp()
    real = plan(model, *args, mesh=Mesh(tp=2)).to_dict()
    planned = plan(meta, *meta_args, mesh=Mesh(tp=2)).to_dict()
    for document in (real, planned):
        del document["search"]
    assert planned == real


def test_plans_are_the_same_every_time() -> None:
    model, args, _ = zoo.mlp()
    first, second = (plan(model, *args, mesh=Mesh(dp=2, tp=2)) for _ in range(2))
    assert first.nodes == second.nodes
    assert first.boxings == second.boxings
    assert first.predicted == second.predicted


def test_memory_limit_refuses_what_does_not_fit() -> None:
    model, args, _ = zoo.mlp()
    needed = plan(model, *args, mesh=Mesh(tp=2)).predicted.bytes
    options = Options(memory=needed)
    assert (
        plan(model, *args, mesh=Mesh(tp=2), options=options).options.memory_bytes
        == needed
    )
    with pytest.raises(NoSolution) as caught:
        plan(model, *args, mesh=Mesh(tp=2), options=Options(memory=1000, time_limit=20))
    assert str(caught.value).startswith("memory: the limit is 1000 B on a rank, and no")
    assert "; a plan was found within " in str(caught.value)


def total(outputs: Tensor) -> Tensor:
    return outputs.sum()


def test_what_was_asked_for_stands_in_the_plan() -> None:
    model = nn.Linear(4, 4)
    pins = {"weight": "S(0)"}
    options = Options(loss=total, optimizer="sgd", pins=pins)
    made = plan(model, small.batch(), mesh=Mesh(tp=2), options=options)
    assert made.options.loss is LossKind.CALLABLE
    assert made.options.optimizer == "sgd"
    assert made.options.pins == pins
    assert made.loss_function is total
    assert Plan.from_dict(made.to_dict()).loss_function is None
    inference = Options(train=False)
    made = plan(model, small.batch(), mesh=Mesh(tp=2), options=inference)
    assert not made.options.train
    assert [str(output) for output in made.outputs] == ["output:output"]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (Options(pins={"wieght": "B"}), BadOptions, "did you mean 'weight'?"),
        (Options(pins={"weight": "S(2)"}), BadOptions, "names dim 2, but shape [4, 4]"),
        (Options(hardware="abacus"), BadOptions, "hardware 'abacus' is neither a file"),
        (Options(), CaptureFailed, "the loss is no scalar"),
    ],
)
def test_what_cannot_be_planned_is_refused(
    options: Options, error: type[Exception], message: str
) -> None:
    if error is BadOptions:
        options = Options(loss=total, pins=options.pins, hardware=options.hardware)
    with pytest.raises(error) as caught:
        plan(nn.Linear(4, 4), small.batch(), mesh=Mesh(tp=2), options=options)
    assert message in str(caught.value)


def test_a_mesh_of_another_type_is_refused() -> None:
    mesh: Any = (2, 2)
    with pytest.raises(BadMesh, match=r"mesh is \(2, 2\); want Mesh"):
        plan(nn.Linear(2, 2), torch.ones(2, 2), mesh=mesh)


class WithNothing(torch.nn.Module):
    """One of its parameters has no elements, as some configurations make them."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(4, 4))
        self.none = torch.nn.Parameter(torch.randn(0, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x @ self.w, self.none]).square().sum()


def test_a_parameter_without_elements_is_whole() -> None:
    model, x = WithNothing(), torch.randn(4, 4)
    found = plan(model, x, mesh=Mesh(tp=2))
    assert str(found.parameters["none"].placements.storage) == "(B,)"
    assert verify(model, x, plan=found).ok


@pytest.mark.parametrize("ranks", [{"mesh": "pp=2,dp=1"}, {"devices": 2}])
def test_microbatches_are_chosen_that_the_schedule_asked_for_can_do(
    ranks: dict[str, Any],
) -> None:
    model, args, _ = FEW_CALLS["chain"]()
    found = plan(model, *args, options=Options(schedule="interleaved"), **ranks)
    assert found.schedule.name == "interleaved"
    assert found.microbatches % 2 == 0
    fixed = Options(schedule="interleaved", microbatches=1)
    with pytest.raises(BadOptions, match="1 microbatches are no multiple of 2 ranks"):
        plan(model, *args, options=fixed, **ranks)


def test_pipelines_come_first_where_meshes_cannot_all_be_tried_in_time() -> None:
    model, args, kwargs = PIPELINES["chain"]()
    options = Options(time_limit=1e-3, hardware="a100-80gb-selene")
    found = plan(model, *args, devices=16, options=options, **kwargs)
    ways = [(tried.way, tried.seconds is None) for tried in found.search.tried]
    assert ways[-1] == ("mesh dp=8,tp=2", True)  # it was not begun
    assert len(found.stages) > 1


def test_pipelines_that_there_was_no_time_for_are_among_what_was_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none(_: PipelineSearch) -> Plan:
        raise NoSolution("no pipeline was found")

    monkeypatch.setattr(PipelineSearch, "run", none)
    model, args, kwargs = PIPELINES["chain"]()
    found = plan(model, *args, devices=2, options=Options(microbatches=2), **kwargs)
    mesh, stages = found.search.tried
    assert (mesh.way, mesh.seconds) == ("mesh dp=2", found.predicted.seconds)
    assert (stages.way, stages.seconds) == ("stages on 2 ranks", None)


@pytest.mark.parametrize(("memory", "limits"), [("1GiB", [None]), (None, [None])])
def test_pipelines_keep_to_no_limit_where_what_is_faster_needs_none(
    memory: str | None, limits: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = _limits_of_pipelines(monkeypatch, is_found=False)
    model, args, kwargs = PIPELINES["chain"]()
    options = Options(microbatches=2, memory=memory)
    found = plan(model, *args, devices=2, options=options, **kwargs)
    assert asked == limits
    assert [tried.way for tried in found.search.tried][-1] == "stages on 2 ranks"


def test_pipelines_keep_to_the_limit_where_they_may_be_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, args, kwargs = PIPELINES["chain"]()
    options = Options(microbatches=2, schedule="sequential")
    free = plan(model, *args, devices=2, options=options, **kwargs)
    asked = _limits_of_pipelines(monkeypatch, is_found=False)
    tight = Options(microbatches=2, memory=free.predicted.bytes - 1)
    plan(model, *args, devices=2, options=tight, **kwargs)
    assert asked == [free.predicted.bytes - 1]  # memory has a price
    asked = _limits_of_pipelines(monkeypatch, is_found=True)
    wide = Options(microbatches=2, memory="1GiB")
    plan(model, *args, devices=2, options=wide, **kwargs)
    assert asked == [None, "1GiB"]  # without it one is faster


def _limits_of_pipelines(
    monkeypatch: pytest.MonkeyPatch, is_found: bool
) -> list[str | float | None]:
    """Have pipelines be searched by nobody; return what limits are asked for."""
    asked: list[str | float | None] = []

    def none(search: PipelineSearch) -> Plan | None:
        (planner,) = search.programs
        asked.append(planner.options.memory)
        if is_found and planner.options.memory is None:
            return None
        raise NoSolution("no pipeline was found")

    monkeypatch.setattr(PipelineSearch, "run", none)
    return asked


@pytest.mark.parametrize(
    ("devices", "text"),
    [(0, "0"), (True, "True"), (10**9, "1000000000"), (10**400, f"1{'0' * 56}...")],
)
def test_a_number_of_ranks_that_no_machine_has_is_refused(
    devices: int, text: str
) -> None:
    model, args, _ = zoo.mlp()
    with pytest.raises(BadMesh) as caught:
        plan(model, *args, devices=devices)
    want = f"devices is {text}; want a number of ranks, from 1 to 1048576"
    assert str(caught.value) == want
