"""The dims of solvers, as text; that rows hold is proven in ``test_table.py``."""

import pytest
import torch
from tests.compiler.rules.rule_values import call, x
from torch import Tensor, nn

import partita as pt
from partita.compiler.rules.table import default_rules
from partita.testing.prover import Sample, call_of

STACK = x(4, 3, 3) + 20 * torch.eye(3)
ORDER = torch.tensor([2, 0, 1])
COLUMNS = "* ? ?, * ? k -> * ? k"


@pytest.mark.parametrize(
    ("sample", "text"),
    [
        (
            call("_linalg_solve_ex", STACK, x(4, 3, 6)),
            "b0 ? ?, b0 ? k -> b0 ? k, b0 ? ? =k",
        ),
        (
            call("_linalg_solve_ex", STACK[0], x(4, 3, 6)),
            "? ?, b0 ? k -> b0 ? k, ? ? =b0 =k",
        ),
        (call("_linalg_solve_ex", STACK, x(4, 3)), "* ? ?, * ? -> * ?, * ? ?"),
        (call("_linalg_solve_ex", STACK, x(3)), "* ? ?, * ? -> * ?, * ? ?"),
        (call("linalg_solve_triangular", STACK, x(4, 3, 6), upper=True), COLUMNS),
        (
            call("linalg_solve_triangular", STACK, x(4, 6, 3), upper=True, left=False),
            "* ? ?, * k ? -> * k ?",
        ),
        (call("_linalg_svd", STACK), "* ? ? -> * ? ?, * ?, * ? ?"),
        (call("_linalg_svd", STACK, compute_uv=False), "* ? ? -> ?, * ?, ?"),
        (call("searchsorted.Tensor", x(3), x(4, 6)), "?, * -> *"),
        (call("searchsorted.Tensor", x(4, 3), x(4, 6)), "* ?, * k -> * k"),
        (call("searchsorted.Tensor", x(3), x(4, 6), sorter=ORDER), "?, *, ? -> *"),
        (
            call("searchsorted.Tensor", x(4, 3), x(4, 6), sorter=ORDER.repeat(4, 1)),
            "* ?, * k, * ? -> * k",
        ),
    ],
)
def test_matrices_are_whole_and_stacks_split(sample: Sample, text: str) -> None:
    rule = default_rules.get(sample.op)
    assert rule is not None
    assert rule.dims_of(call_of(sample)).startswith(text)


class Gaussian(nn.Module):
    """The log likelihood of samples, each with a covariance of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 9)

    def forward(self, samples: Tensor) -> Tensor:
        """Return the mean over ``samples`` ``[batch, 6]``."""
        root = self.layer(samples).view(-1, 3, 3)
        covariance = root @ root.mT + torch.eye(3)
        scale = torch.linalg.cholesky(covariance)
        whitened = torch.linalg.solve(covariance, samples[:, :3])
        return torch.logdet(covariance).mean() + (scale @ whitened[..., None]).mean()


def test_each_microbatch_solves_for_its_own_samples() -> None:
    model, samples = Gaussian(), torch.randn(8, 6)
    options = pt.Options(microbatches=4, schedule="1f1b")
    plan = pt.plan(model, samples, mesh="pp=2", options=options)
    assert not plan.reported
    report = pt.verify(model, samples, plan=plan)
    assert report.ok, report


class Bins(nn.Module):
    """An embedding of the bin that each number is in, of edges in any order."""

    edges: Tensor
    order: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.embedding = nn.Linear(6, 6), nn.Embedding(4, 6)
        self.register_buffer("edges", torch.tensor([1.0, -1.0, 0.0]))
        self.register_buffer("order", torch.tensor([1, 2, 0]))

    def forward(self, samples: Tensor) -> Tensor:
        """Return the mean over ``samples`` ``[batch, 6]``."""
        found = self.layer(samples)
        bins = torch.searchsorted(self.edges, found, sorter=self.order)
        return (self.embedding(bins) * found[..., None]).mean()


def test_edges_that_are_sorted_as_they_are_read_plan() -> None:
    model, samples = Bins(), torch.randn(8, 6)
    plan = pt.plan(model, samples, mesh="dp=2")
    assert not plan.reported
    report = pt.verify(model, samples, plan=plan)
    assert report.ok, report
