"""Windows that slide over the last dims of images: what a chunk of them needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.rules.rule import Call
from partita.compiler.rules.shapes import ints


@dataclass(frozen=True, slots=True)
class Window:
    """A window along one dim, in rows.

    >>> Window(kernel=3, stride=2, padding=1).behind
    0
    """

    kernel: int
    stride: int
    padding: int = 0
    dilation: int = 1

    @property
    def before(self) -> int:
        """How many rows before its own chunk a rank's first window sees."""
        return self.padding

    @property
    def behind(self) -> int:
        """How many rows behind its own chunk a rank's last window sees."""
        covered = (self.kernel - 1) * self.dilation + 1
        return max(covered - self.stride - self.padding, 0)

    def mark(self, rows: int, num_windows: int) -> str | None:
        """Return how a row of the table marks the dim: ``None`` where it stays whole.

        Chunks of the image go with chunks of what is made of it where every stride
        has one window; where no window leaves its chunk the op does as it is.
        """
        if rows != self.stride * num_windows:
            return None
        return "!~" if self.before or self.behind else ""


def of_convolution(call: Call, position: int, image: int) -> tuple[Window, ...]:
    """Return the windows of a convolution, one per spatial dim.

    Args:
        call: of a convolution, or of its backward.
        position: of its stride, which padding and dilation follow.
        image: which operand is the input; the weight is the next.
    """
    kernel = call.operands[image + 1].shape[2:]
    steps = [ints(arg) for arg in call.args[position : position + 3]]
    return _windows(len(kernel), kernel, *steps)


def of_pool(call: Call, position: int) -> tuple[Window, ...]:
    """Return the windows of a pool: kernel, stride, padding from an argument on.

    A maximum's dilation follows them, where the op has one. How many dims it slides
    over stands in its name alone: images may come without a batch.
    """
    kernel = ints(call.args[position])
    stride = ints(call.arg(position + 1)) or kernel
    padding, dilation = (
        ints(call.arg(position + at, 0 if at == 2 else 1)) for at in (2, 3)
    )
    num = 3 if "pool3d" in call.op else 2
    return _windows(num, kernel, stride, padding, dilation)


def _windows(num: int, *columns: Sequence[int]) -> tuple[Window, ...]:
    """Return ``num`` windows; a single number is that of all of them."""
    spread = [[*column] * num if len(column) == 1 else column for column in columns]
    return tuple(Window(*row) for row in zip(*spread, strict=True))


Mark = str | None


def marks_of(
    windows: tuple[Window, ...], image: TensorType, made: TensorType | None
) -> list[Mark]:
    """Return the mark of each spatial dim of an image, given what is made of it."""
    assert made is not None
    num = len(windows)
    sizes = zip(windows, image.shape[-num:], made.shape[-num:], strict=True)
    return [window.mark(rows, count) for window, rows, count in sizes]


def dims_of(windows: tuple[Window, ...], marks: list[Mark]) -> tuple[str, list[str]]:
    """Return the spatial dims of an image, and of what the windows make of it.

    >>> dims_of((Window(3, 2, 1), Window(3, 1)), ["!~", None])
    ('(y0!~ s0^:2) ?', ['y0!~', 'y1^'])
    """
    inner: list[str] = []
    outer: list[str] = []
    for dim, (window, mark) in enumerate(zip(windows, marks, strict=True)):
        name = f"y{dim}{'^' if mark is None else mark}"
        product = f"({name} s{dim}^:{window.stride})" if window.stride > 1 else name
        inner.append("?" if mark is None else product)
        outer.append(name)
    return " ".join(inner), outer
