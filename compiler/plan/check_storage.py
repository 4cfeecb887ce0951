"""Check how a parameter goes from storage to its use and its gradient comes back."""

from __future__ import annotations

from partita.compiler.errors import BadPlan
from partita.compiler.ir.program import OutputKind
from partita.compiler.plan.document import Boxing, Document
from partita.compiler.plan.uses import (
    boxings_by_use,
    parameter_uses,
    produced,
    storage_key,
)


def check_storage(document: Document) -> None:
    """Check the placements of every parameter against what brings it from one to next.

    * its use is as the first of its users takes it, or another
    * a boxing brings it from the optimizer's placement to storage, where they differ
    * its gradient leaves as the optimizer takes it, by way of its own placement

    Raises:
        BadPlan: naming the parameter, the output or the boxing.
    """
    keys = {
        node.role.name: key
        for key, node in document.nodes.items()
        if node.role is not None and node.role.kind.is_state
    }
    entering = {boxing.producer: boxing for boxing in document.boxings if boxing.enters}
    expected: set[str] = set()
    for name, parameter in document.parameters.items():
        held = parameter.placements
        if held.optimizer in (None, held.storage) or name not in keys:
            continue
        key = storage_key(keys[name], held.storage)
        boxing = entering.get(keys[name])
        if boxing is None:
            raise BadPlan(
                f"boxings: found no {key!r}, which brings {name} from where the "
                f"optimizer has it, {held.optimizer}"
            )
        ends = (boxing.key, boxing.source, boxing.target)
        if ends != (key, held.optimizer, held.storage):
            raise BadPlan(
                f"boxings: {boxing.key!r} goes from {boxing.source} to "
                f"{boxing.target}, wanted {key!r} from {held.optimizer} to "
                f"{held.storage}"
            )
        expected.add(boxing.key)
    for boxing in entering.values():
        if boxing.key not in expected:
            raise BadPlan(
                f"boxings: {boxing.key!r} is its own user; want that of a parameter "
                "which the optimizer has in another placement"
            )
    uses = parameter_uses(document)
    for name, parameter in document.parameters.items():
        found, wanted = parameter.placements.use, uses.get(name, ())
        if wanted and found not in wanted:
            raise BadPlan(
                f"parameters.{name}.placements.use: found {found}, wanted {wanted[0]}, "
                "as the first who uses it takes it"
            )
    _check_gradients(document)


def _check_gradients(document: Document) -> None:
    boxings = boxings_by_use(document)
    for index, output in enumerate(document.outputs):
        parameter = document.parameters.get(output.name)
        if output.kind is not OutputKind.GRADIENT or output.value is None:
            continue
        if parameter is None:
            raise BadPlan(f"outputs[{index}]: there is no parameter {output.name!r}")
        held = parameter.placements
        if output.placement != held.optimizer:
            raise BadPlan(
                f"outputs[{index}].placement: found {output.placement}, wanted "
                f"{held.optimizer}, as the optimizer has {output.name}"
            )
        if output.placement is None:
            continue
        made = produced(document, output.value)
        boxing = boxings.get((str(output), output.value, output.placement))
        if held.gradient not in _passed(made, boxing):
            raise BadPlan(
                f"parameters.{output.name}.placements.gradient: found {held.gradient}, "
                f"but it goes from {made} to {output.placement} another way"
            )


def _passed(made: object, boxing: Boxing | None) -> tuple[object, ...]:
    """Return the placements that a tensor passes on its way."""
    steps = () if boxing is None else boxing.lowering
    return (made, *(step.after for step in steps))
