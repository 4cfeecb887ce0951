"""What only leaves a program: gradients above all, and the views that they leave by.

What is boxed before such a view may as well be boxed behind it, and should not be both:
of a gradient's messages nobody waits for the last alone. Added up, two would seem to be
hidden. So a view is *handed on* what is made as it is, where it can take that, and the
boxing behind it costs what it does on the cheaper side. ``settled`` puts it there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.fold import Fold, HandedOn, Shared
from partita.compiler.search.model import Floats
from partita.compiler.search.problem import SearchNode, made_placement, price_table


def leaving(fold: Fold) -> set[tuple[int, int]]:
    """Return classes and results that nothing but outputs and views of them want."""
    views = _views_that_leave(fold)
    return {tensor for tensor, wanting in _users(fold).items() if wanting <= views}


def boxed_once(fold: Fold) -> Fold:
    """Return the fold whose leaving views are handed on what is made, where they can.

    Each is of one tensor that nobody else wants, wanted by one class, as often.
    """
    views = _views_that_leave(fold)
    from_: dict[int, list[Shared]] = {}
    into: dict[int, list[Shared]] = {}
    for tensor in fold.shared:
        if tensor.source in views:
            from_.setdefault(tensor.source, []).append(tensor)
        for user, _ in tensor.users:
            if user in views:
                into.setdefault(user, []).append(tensor)
    tied = {number for tie in fold.ties for number in (tie.first, tie.second)}
    found: dict[int, HandedOn] = {}
    for view in from_.keys() - tied:
        if len(into[view]) == len(from_[view]) == 1:
            handed = _handed_on(fold, view, into[view][0], from_[view][0])
            if handed is not None:
                found[view] = handed
    return fold.with_handed(found)


def _handed_on(fold: Fold, view: int, taken: Shared, left: Shared) -> HandedOn | None:
    if not (_is_by_itself(taken) and _is_by_itself(left) and taken.times == left.times):
        return None
    choices = _node(fold, view).choices
    own = [(c.signature.operands[0], made_placement(c, 0)) for c in choices]
    behind = {made: before for before, made in own}
    makers = _node(fold, taken.source).choices
    made = {made_placement(choice, taken.result) for choice in makers}
    if len(behind) < len(own) or not made <= set(behind.values()):
        return None
    ((user, (position,)),) = left.users
    numbers = {made: number for number, (_, made) in enumerate(own)}
    return HandedOn((taken.source, taken.result), (user, position), behind, numbers)


def boxing_table(
    fold: Fold,
    tensor: tuple[int, int],
    made: Sequence[Placement],
    wanted: Sequence[Placement],
) -> Floats:
    """Return the seconds of boxing a class's result once, on the cheapest side.

    Where its user is handed what is made nothing may be boxed; see ``build_model``.
    """
    table = price_table(fold.problem.box_seconds, _type(fold, tensor), made, wanted)
    view = fold.handed.get(tensor[0])
    if view is None:
        return table
    rows, columns = (
        [at for at, placement in enumerate(all_) if placement in view.taken]
        for all_ in (made, wanted)
    )
    if not (rows and columns):  # its user wants nothing that the view can make
        return table
    before = boxing_table(
        fold,
        view.source,
        [view.taken[made[at]] for at in rows],
        [view.taken[wanted[at]] for at in columns],
    )
    table = table.copy()
    own = np.ix_(rows, columns)
    table[own] = np.minimum(table[own], before)
    return table


def settled(fold: Fold, choices: Sequence[int]) -> list[int]:
    """Return choices per class whose boxings stand on the cheaper side of views."""
    found, handed = list(choices), fold.handed
    last = [view for view, own in handed.items() if own.user[0] not in handed]
    for first in last:
        view = first
        while view in handed:
            own, node = handed[view], _node(fold, view)
            user, position = own.user
            made = made_placement(node.choices[found[view]], 0)
            wanting = _node(fold, user).choices[found[user]].signature
            wanted = wanting.operands[position]
            if wanted == made or wanted not in own.taken:
                break
            behind = price_table(
                fold.problem.box_seconds, _type(fold, (view, 0)), [made], [wanted]
            )
            taken = [own.taken[made]], [own.taken[wanted]]
            before = boxing_table(fold, own.source, *taken)
            if before[0, 0] >= behind[0, 0]:
                break
            found[view] = own.choices[wanted]
            view = own.source[0]
    return found


def _views_that_leave(fold: Fold) -> set[int]:
    """Return the classes of outputs, and of views that nothing but such want."""
    users = _users(fold)
    nodes = [_node(fold, number) for number in range(len(fold.members))]
    views = {own for own, node in enumerate(nodes) if _is_view(node)}
    inside = views
    while inside:
        inside = views & {own for (own, _), each in users.items() if not each <= views}
        views -= inside
    return views


def _users(fold: Fold) -> dict[tuple[int, int], set[int]]:
    users: dict[tuple[int, int], set[int]] = {}
    for tensor in fold.shared:
        wanting = users.setdefault((tensor.source, tensor.result), set())
        wanting |= {user for user, _ in tensor.users}
    return users


def _is_view(node: SearchNode) -> bool:
    return len(node.operands) == 1 and not any(c.seconds for c in node.choices)


def _is_by_itself(tensor: Shared) -> bool:
    """Whether one operand of one class is it, and holding it costs nothing."""
    is_one = len(tensor.users) == 1 and len(tensor.users[0][1]) == 1
    return is_one and not tensor.rate and not tensor.freed


def _type(fold: Fold, tensor: tuple[int, int]) -> TensorType:
    type_ = _node(fold, tensor[0]).result_types[tensor[1]]
    assert type_ is not None
    return type_


def _node(fold: Fold, number: int) -> SearchNode:
    return fold.problem.nodes[fold.members[number][0]]
