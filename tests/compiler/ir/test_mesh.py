"""Meshes number ranks as DeviceMesh does."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError

import pytest
import torch.distributed as dist
from hypothesis import given
from tests.compiler.ir.placement_strategies import meshes
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from partita.compiler.errors import BadMesh
from partita.compiler.ir.mesh import Mesh


@given(meshes())
def test_what_prints_parses(mesh: Mesh) -> None:
    assert Mesh.parse(str(mesh)) == mesh
    assert eval(repr(mesh), {"Mesh": Mesh}) == mesh
    assert pickle.loads(pickle.dumps(mesh)) == mesh
    assert copy.deepcopy(mesh) == mesh


@given(meshes())
def test_coordinates_and_ranks_are_inverse(mesh: Mesh) -> None:
    everyone = mesh.all_coordinates()
    assert len(set(everyone)) == mesh.size
    assert [mesh.rank(coords) for coords in everyone] == list(range(mesh.size))
    assert tuple(mesh.coordinates(rank) for rank in range(mesh.size)) == everyone


@given(meshes())
def test_groups_of_an_axis_divide_the_ranks(mesh: Mesh) -> None:
    for axis, name in enumerate(mesh.names):
        groups = mesh.groups(name)
        assert sorted(rank for group in groups for rank in group) == list(
            range(mesh.size)
        )
        for group in groups:
            along = [mesh.coordinates(rank)[axis] for rank in group]
            assert along == list(range(mesh.sizes[axis]))


@pytest.mark.parametrize("mesh", [Mesh(dp=4), Mesh(dp=2, tp=3), Mesh(pp=2, dp=2, tp=2)])
def test_numbering_is_that_of_device_mesh(mesh: Mesh) -> None:
    for rank in range(mesh.size):
        store = FakeStore()
        dist.init_process_group("fake", rank=rank, world_size=mesh.size, store=store)
        try:
            theirs = init_device_mesh("cpu", mesh.sizes, mesh_dim_names=mesh.names)
            coordinate = theirs.get_coordinate()
            assert coordinate is not None
            assert tuple(coordinate) == mesh.coordinates(rank)
            for name in mesh.names:
                group = dist.get_process_group_ranks(theirs.get_group(name))
                assert tuple(group) in mesh.groups(name)
                assert rank in group
        finally:
            dist.destroy_process_group()


def test_last_axis_joins_neighbours() -> None:
    mesh = Mesh(dp=2, tp=2)
    assert mesh.groups("tp") == ((0, 1), (2, 3))
    assert mesh.groups("dp") == ((0, 2), (1, 3))
    assert mesh.axis("tp") == 1


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({}, "a mesh needs at least one axis, e.g. Mesh(dp=2)"),
        ({"0dp": 2}, "mesh axis '0dp' is not a name, e.g. 'dp' or 'tp'"),
        ({"dp": 0}, "mesh axis 'dp' has size 0; want an int >= 1"),
        ({"dp": True}, "mesh axis 'dp' has size True; want an int >= 1"),
        ({"dp": 2.0}, "mesh axis 'dp' has size 2.0; want an int >= 1"),
        ({"dp": 10**5000}, "mesh axis 'dp': want at most 1048576 ranks"),
        (
            {"dp": 2**20, "tp": 2},
            "mesh dp=1048576,tp=2 has too many ranks; want at most 1048576",
        ),
    ],
)
def test_bad_mesh_is_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(BadMesh) as caught:
        Mesh(**sizes)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dp", "mesh 'dp': found 'dp'; want NAME=SIZE, ..."),
        ("dp=two", "mesh 'dp=two': found 'dp=two'; want NAME=SIZE, ..."),
        ("dp=2,dp=2", "mesh 'dp=2,dp=2': axis 'dp' is named twice"),
        ("", "mesh '': found ''; want NAME=SIZE, ..."),
        ("dp=0", "mesh axis 'dp' has size 0; want an int >= 1"),
        ("dp=\u0664", "mesh 'dp=\u0664': found 'dp=\u0664'; want NAME=SIZE, ..."),
        (
            "dp=1000000007",
            "mesh axis 'dp': want at most 1048576 ranks",
        ),
    ],
)
def test_text_that_is_no_mesh_is_refused(text: str, message: str) -> None:
    with pytest.raises(BadMesh) as caught:
        Mesh.parse(text)
    assert str(caught.value) == message


def test_unknown_axis_is_refused() -> None:
    with pytest.raises(BadMesh) as caught:
        Mesh(dp=2, tp=2).axis("pp")
    assert str(caught.value) == ("mesh dp=2,tp=2 has no axis 'pp'; its axes are dp, tp")


def test_mesh_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Mesh(dp=2).axes = ()  # type: ignore[misc]
