"""What convolutions hold while they run: oneDNN has channels in blocks.

Images that lie in order are copied into blocks of eight channels, the last of them
filled up with zeros, results are made in blocks and copied out of them. An image of
three channels, of colours, is read as it is; in the forward one of a single one too.
Source: oneDNN's layouts nChw8c and, for flat images, nchw (jit_avx2_conv_kernel_f32).

On CPUs with AVX-512 blocks are of sixteen channels: where channels do not fill those,
more is held than is counted here.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from partita.compiler.ir.tensor_type import TensorType

_BLOCK = 8  # channels
_FLAT = (1, 3)  # channels that a convolution reads as they are
_FLAT_IN_BACKWARD = (3,)


def convolution_bytes(image: TensorType, weight: TensorType, made: TensorType) -> int:
    """Return the bytes that a convolution holds beyond its operands and its result.

    They are the blocks of image, weight and result, then the result out of its blocks.
    A larger one, of a transposed convolution, comes out by channels and is copied.

    >>> import torch
    >>> image = TensorType((2, 12, 4, 4), torch.float32)
    >>> weight = TensorType((16, 12, 1, 1), torch.float32)
    >>> made = TensorType((2, 16, 4, 4), torch.float32)
    >>> convolution_bytes(image, weight, made) == 4 * (2 * 16 * 16 + 16 * 12)
    True
    """
    blocks = _read_bytes(image, weight, _FLAT) + weight.num_bytes + _blocked_bytes(made)
    copied = made.num_bytes if _is_larger(made, image) else 0
    return max(blocks - made.num_bytes, _blocked_bytes(made) + copied)


def weight_gradient_bytes(
    grad: TensorType, image: TensorType, weight: TensorType
) -> int:
    """Return the bytes that the gradient of a weight is made from: both in blocks."""
    return _blocked_bytes(grad) + _read_bytes(image, weight, _FLAT_IN_BACKWARD)


def image_gradient_bytes(
    grad: TensorType, image: TensorType, weight: TensorType
) -> int:
    """Return the bytes that the gradient of an image takes, itself among them.

    It is made from the result's gradient and the weight, all in blocks, and comes out
    of them as the result of a convolution does.
    """
    made = _blocked_bytes(image)
    blocks = _blocked_bytes(grad) + weight.num_bytes + made
    is_larger = _is_larger(image, grad)
    copies = 3 * image.num_bytes if is_larger else made + image.num_bytes
    return max(blocks, copies)


def _blocked_bytes(image: TensorType) -> int:
    """Return the bytes of an image whose channels fill up their last block."""
    channels = image.shape[1]
    blocked = -(-channels // _BLOCK) * _BLOCK
    return image.num_bytes // max(channels, 1) * blocked


def _read_bytes(image: TensorType, weight: TensorType, flat: Sequence[int]) -> int:
    """Return the bytes of an image in the form in which kernels read it."""
    is_flat = image.shape[1] == weight.shape[1] and image.shape[1] in flat
    return 0 if is_flat else _blocked_bytes(image)


def _is_larger(made: TensorType, given: TensorType) -> bool:
    """Whether an image has twice the pixels of that which it is made from, or more."""
    return prod(made.shape[2:]) >= 2 * prod(given.shape[2:])
