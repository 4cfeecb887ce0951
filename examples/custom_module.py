"""Plan one's own module on a 2x2 mesh: a loss function, pins, and a saved plan.

$ .venv/bin/python examples/custom_module.py
TwoTowers on mesh dp=2,tp=2: 4 ranks, hardware cpu-gloo, training
...
query.0.weight     x1  f32[512, 128]  (B, S(0))     same         same      same
...
document.0.weight  x1  f32[512, 128]  (S(1), S(0))  (B, S(0))    same      same
...
loaded as it was saved: True
verify: ok: 10 tensors, largest error 1.42e-15 in double precision, 4.99e-07 in ...
...
"""

from __future__ import annotations

import torch
from torch import nn

import partita as pt


class TwoTowers(nn.Module):
    """Scores every query of a batch against every document of it."""

    def __init__(self, features: int = 128, hidden: int = 512, width: int = 64) -> None:
        super().__init__()
        self.query = nn.Sequential(
            nn.Linear(features, hidden), nn.GELU(), nn.Linear(hidden, width)
        )
        self.document = nn.Sequential(
            nn.Linear(features, hidden), nn.GELU(), nn.Linear(hidden, width)
        )

    def forward(self, queries: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
        """Return the scores, ``[queries, documents]``."""
        queries = nn.functional.normalize(self.query(queries), dim=-1)
        documents = nn.functional.normalize(self.document(documents), dim=-1)
        return 10 * queries @ documents.T


def contrast(scores: torch.Tensor) -> torch.Tensor:
    """Return the loss: the i-th document is the right one of the i-th query.

    It looks at the whole batch, so a rank cannot compute it from its own part alone.
    """
    right = torch.arange(len(scores), device=scores.device)
    return nn.functional.cross_entropy(scores, right)


def main() -> None:
    """Plan with pins, save, load, verify what was loaded."""
    torch.manual_seed(0)
    model = TwoTowers()
    batch = (torch.randn(32, 128), torch.randn(32, 128))
    options = pt.Options(
        loss=contrast,
        pins={
            "queries": "(S(0), B)",  # the batch over dp
            "query.0.weight": "(B, S(0))",  # its columns over tp
            "document.0.weight": "(S(1), S(0)) use=(B, S(0))",  # gathered over dp
        },
    )
    plan = pt.plan(model, *batch, mesh=pt.Mesh(dp=2, tp=2), options=options)
    print(plan, end="\n\n")

    plan.save("two_towers.plan.json")
    loaded = pt.Plan.load("two_towers.plan.json")
    print("loaded as it was saved:", loaded == plan)
    # A file holds no code, so the loss is given again.
    print(pt.verify(model, *batch, plan=loaded, loss=contrast))


if __name__ == "__main__":
    main()
