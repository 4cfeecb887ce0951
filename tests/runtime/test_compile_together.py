"""Programs compiled whole: once for all ranks of a machine, or all hear why not."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
from local_programs import batch, local_mlp
from torch import Tensor

from partita.compiler.errors import CompilationFailed
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import InputKind
from partita.runtime import compile_together as module
from partita.runtime.compilation import Compilation
from partita.runtime.compile_together import Chain, compile_together
from partita.runtime.executor import bind_program
from partita.runtime.feeds import FeedKey, shards_of
from partita.runtime.groups import bind
from partita.runtime.launch import launch

pytestmark = pytest.mark.dist


@torch.library.custom_op("partita_tests::untyped", mutates_args=())
def untyped(x: Tensor) -> Tensor:
    """Compute what Inductor cannot know the type of."""
    return x + 1


def values() -> dict[FeedKey, Tensor]:
    x, target = batch()
    state = {
        "up.weight": torch.linspace(-1, 1, 60, dtype=torch.float64).reshape(10, 6),
        "up.bias": torch.linspace(-1, 1, 10, dtype=torch.float64),
        "down.weight": torch.linspace(-1, 1, 40, dtype=torch.float64).reshape(4, 10),
        "scale": torch.ones(4, dtype=torch.float64),
    }
    return {
        **{(InputKind.PARAMETER, name): value for name, value in state.items()},
        (InputKind.BUFFER, "steps"): torch.tensor(3),
        (InputKind.BUFFER, "offset"): torch.ones(10, dtype=torch.float64),
        (InputKind.CONSTANT, "one"): torch.tensor(1),
        # as people hand them over: a transposed view
        (InputKind.INPUT, "x"): x.t().contiguous().t(),
        (InputKind.INPUT, "target"): target,
        (InputKind.LOSS_SCALE, "loss_scale"): torch.tensor(1.0, dtype=torch.float64),
    }


Made = list[Tensor | None]

Computed = tuple[dict[str, int], int, list[int], Made, Made]
"""How Inductor's cache was asked, how often vector instructions were tried out, in
which turns that was, what eager and compiled make."""


def compute() -> Computed:
    from torch._dynamo.utils import counters
    from torch._inductor.cpu_vec_isa import VecISA

    mesh = Mesh(dp=2, tp=1)
    groups = bind(mesh, "cpu")
    local = local_mlp(mesh, groups.coordinates)
    bound = bind_program(local, groups, {}, Compilation.WHOLE)
    original, turns = vars(module)["_compile"], list[int]()

    def counted(wanted: Any, mode: Any) -> Any:
        turns.append(len(wanted))
        return original(wanted, mode)

    try_out, trials = VecISA.check_build, list[str]()

    def tried(kind: Any, code: str) -> bool:
        trials.append(code)
        return try_out(kind, code)

    with (
        patch.object(module, "_compile", counted),
        patch.object(VecISA, "check_build", tried),
    ):
        ((compiled,),) = compile_together([Chain([bound], {}, groups.device)])
    feeds = shards_of(local, values())
    asked = {
        name.removeprefix("fxgraph_cache_"): count
        for name, count in counters["inductor"].items()
        if name.startswith("fxgraph_cache_")
    }
    made = list(bound.run({**feeds})), list(compiled.run({**feeds}))
    return asked, len(trials), turns, *made


def fail_on_the_second() -> tuple[str, bool]:
    mesh = Mesh(dp=2, tp=1)
    groups = bind(mesh, "cpu")
    local = local_mlp(mesh, groups.coordinates)
    if groups.rank == 1:
        graph = local.graph_module.graph
        (output,) = graph.find_nodes(op="output")
        *others, y = output.args[0]
        with graph.inserting_before(output):
            y = graph.call_function(torch.ops.partita_tests.untyped.default, (y,))
        output.args = ((*others, y),)
    bound = bind_program(local, groups, {}, Compilation.WHOLE)
    with pytest.raises(CompilationFailed) as failed:
        compile_together([Chain([bound], {}, groups.device)])
    return str(failed.value), failed.value.__cause__ is not None


def compute_and_fail() -> tuple[Computed, tuple[str, bool]]:
    return compute(), fail_on_the_second()


Run = tuple[list[Computed], list[tuple[Computed, tuple[str, bool]]]]
"""What each rank of a first run finds, and each of the next, which also fails."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run twice on two ranks: it takes them long to bring Inductor."""
    with pytest.MonkeyPatch.context() as patched:
        folder = tmp_path_factory.mktemp("compiled")
        patched.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
        first = launch(f"{__file__}:compute", 2)
        return first, launch(f"{__file__}:compute_and_fail", 2)


def test_ranks_of_one_program_and_the_next_run_share_what_is_compiled(
    runs: Run,
) -> None:
    first, second = runs[0], [computed for computed, _ in runs[1]]
    assert [asked for asked, *_ in first] == [{"miss": 1}, {"hit": 1}]
    assert [asked for asked, *_ in second] == [{"hit": 1}, {"hit": 1}]
    assert [turns for _, _, turns, *_ in first] == [[1, 0], [0, 1]]
    assert [turns for _, _, turns, *_ in second] == [[1, 0], [1, 0]]  # nobody waits
    trials = [num for _, num, *_ in (*first, *second)]
    assert trials == [trials[0], 0, 0, 0]  # of the first rank alone, if it has any
    for *_, want, found in (*first, *second):
        torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-14)


def test_all_ranks_hear_of_the_one_that_cannot_compile(runs: Run) -> None:
    told = [failure for _, failure in runs[1]]
    for message, _ in told:
        assert message.startswith(
            "rank 1 cannot compile its program as a whole; choose compilation="
            "'regions' or 'eager': "
        )
        assert "partita_tests.untyped" in message
    assert [has_cause for _, has_cause in told] == [False, True]
