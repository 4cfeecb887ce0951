"""Which pipelines are looked at."""

from __future__ import annotations

import pytest

import partita as pt
from partita.compiler.errors import BadOptions
from partita.compiler.ir.mesh import Mesh
from partita.pipelines.pipeline_space import PipelineSpace, meshes_of


def test_few_ranks_form_rows_of_any_sizes() -> None:
    space = PipelineSpace.of_devices(4, pt.Options())
    assert set(space.sizes) == {
        *[(1, 3), (3, 1), (2, 2), (1, 1, 2), (1, 2, 1), (2, 1, 1), (1, 1, 1, 1)]
    }
    assert space.meshes[3] == (Mesh(dp=3),)


def test_rows_have_the_axes_that_pins_name() -> None:
    space = PipelineSpace.of_devices(8, pt.Options(pins={"up": "on tp"}))
    assert space.sizes == ((4, 4),)
    assert space.meshes[4] == (Mesh(dp=2, tp=2),)
    assert not PipelineSpace.of_devices(2, pt.Options(pins={"up": "on tp"})).sizes
    one_entry = pt.Options(pins={"up.weight": "(S(0),) use=(B,)"})
    assert PipelineSpace.of_devices(8, one_entry).meshes[4] == (Mesh(dp=4),)


def test_more_ranks_form_rows_that_divide_them() -> None:
    sizes = PipelineSpace.of_devices(8, pt.Options()).sizes
    assert (2, 2, 4) in sizes
    assert not any(3 in row for row in sizes)


def test_many_ranks_form_rows_of_one_size() -> None:
    sizes = PipelineSpace.of_devices(16, pt.Options()).sizes
    assert sizes == ((8, 8), (4,) * 4, (2,) * 8, (1,) * 16)


def names(options: pt.Options, rows: int, count: int) -> list[tuple[str, int]]:
    space = PipelineSpace.of_stages(rows, Mesh(dp=1), options)
    forms = space.forms(count)
    return [(f.schedule.name, f.schedule.num_stages // rows) for f in forms]


def test_every_schedule_is_tried_once() -> None:
    found = names(pt.Options(), 2, 4)
    one = [("1f1b", 1), ("frugal", 1), ("gpipe", 1), ("zero-bubble", 1)]
    assert sorted(found) == sorted([*one, *(("interleaved", n) for n in (2, 3, 4))])
    assert ("gpipe", 1) not in names(pt.Options(), 2, 1)  # the same as 1f1b


def test_what_is_asked_for_alone_is_tried() -> None:
    assert names(pt.Options(schedule="gpipe"), 2, 4) == [("gpipe", 1)]
    asked = pt.Options(schedule="interleaved", stages_per_rank=3)
    assert names(asked, 2, 4) == [("interleaved", 3)]
    assert names(pt.Options(stages_per_rank=2), 2, 4) == [("interleaved", 2)]


def test_rows_that_the_schedule_asked_for_cannot_be_on_are_left_out() -> None:
    asked = pt.Options(schedule="interleaved", stages_per_rank=2)
    space = PipelineSpace.of_devices(4, asked)
    space.check_count(2)
    assert {len(form.sizes) for form in space.forms(2)} == {2}
    assert not space.forms(1)
    with pytest.raises(BadOptions, match="1 microbatches are no multiple of"):
        space.check_count(1)


def test_more_microbatches_than_keep_rows_busy_are_asked_for_or_left_out() -> None:
    assert not names(pt.Options(), 2, 16)
    assert names(pt.Options(microbatches=16), 2, 16)


def test_rows_that_would_have_no_call_are_left_out() -> None:
    space = PipelineSpace.of_devices(1009, pt.Options())
    assert space.sizes == ((1,) * 1009,)
    assert not space.forms(8, most_rows=1008)


def test_meshes_have_one_axis_or_two() -> None:
    assert [str(mesh) for mesh in meshes_of(6)] == ["dp=6", "dp=2,tp=3", "dp=3,tp=2"]
