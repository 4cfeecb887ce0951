"""All models that pipelines are tried on, with dropout on wherever they have it."""

from __future__ import annotations

from collections.abc import Callable

from tests.models.dropout import with_dropout
from tests.models.more_models import MORE
from tests.models.pipelines import PIPELINES
from tests.models.zoo import Built

STAGED: dict[str, Callable[[], Built]] = {
    **PIPELINES,
    **{name: MORE[name] for name in ("llama", "t5", "bart", "unet", "vit", "mixtral")},
    "gpt2": lambda: with_dropout("gpt2"),
}
