"""The type of a logical tensor: shape and dtype, printed as ``f32[8, 4]``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import prod

import torch

from partita.compiler.errors import BadPlan

_SHORT: dict[torch.dtype, str] = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "f8e4m3",
    torch.float8_e5m2: "f8e5m2",
    torch.complex32: "c32",
    torch.complex64: "c64",
    torch.complex128: "c128",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint64: "u64",
    torch.uint32: "u32",
    torch.uint16: "u16",
    torch.uint8: "u8",
    torch.bool: "b8",
}
_DTYPES = {short: dtype for dtype, short in _SHORT.items()}

_MOST_BYTES = 2**63 - 1
"""What torch counts in an int64."""

_DIGITS = len(str(_MOST_BYTES))
"""Python reads no number of thousands of digits."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape (logical) and dtype of a tensor.

    >>> t = TensorType((8, 4), torch.float32)
    >>> str(t), t.num_bytes, TensorType.parse("f32[8, 4]") == t
    ('f32[8, 4]', 128, True)
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Whatever is known of a call is known by its types: hashed far more than made.
        object.__setattr__(self, "_hash", hash((self.shape, self.dtype)))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[object, tuple[tuple[int, ...], torch.dtype]]:
        # A dtype has another hash in each process.
        return TensorType, (self.shape, self.dtype)

    def __str__(self) -> str:
        return f"{_SHORT[self.dtype]}{list(self.shape)}"

    @classmethod
    def parse(cls, text: str) -> TensorType:
        """Read ``f32[8, 4]``, the form that ``str`` prints.

        Raises:
            BadPlan: when the text has another form, or no memory could hold it.
        """
        match = re.fullmatch(r"(\w+)\[((?:\d+(?:, *\d+)*)?)\]", text)
        if match is None or match[1] not in _DTYPES:
            raise BadPlan(f"tensor type {text!r} is not of the form f32[8, 4]")
        sizes = [size.strip() for size in match[2].split(",") if size]
        if max(map(len, sizes), default=0) <= _DIGITS:
            found = cls(tuple(map(int, sizes)), _DTYPES[match[1]])
            if found.num_bytes <= _MOST_BYTES:
                return found
        raise BadPlan(f"no memory holds more than 2^63 - 1 bytes: tensor type {text!r}")

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return len(self.shape)

    @property
    def numel(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """The size of the whole tensor in bytes."""
        return self.numel * self.dtype.itemsize

    def is_short(self, other: TensorType) -> bool:
        """Whether it is ``other`` in fewer bits, as mixed precision casts floats.

        >>> wide = TensorType((8,), torch.float32)
        >>> TensorType((8,), torch.bfloat16).is_short(wide), wide.is_short(wide)
        (True, False)
        """
        are_floats = self.dtype.is_floating_point and other.dtype.is_floating_point
        is_less = self.dtype.itemsize < other.dtype.itemsize
        return are_floats and is_less and self.shape == other.shape
