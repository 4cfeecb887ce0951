"""Dims of products, norms, convolutions and attention; ``shapes.py`` has the others."""

from __future__ import annotations

from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.rules.rule import Call, Text
from partita.compiler.rules.shapes import arrow, dim_names, ints, whole
from partita.compiler.rules.windows import dims_of, marks_of, of_convolution

# Matrix products


def addmm(call: Call) -> str:
    """Return a product plus a bias of one or two dims."""
    bias = ("m", "n")[2 - call.operands[0].ndim :]
    return f"{' '.join(bias) or '?'}, m k, k n -> m n"


def addmv(call: Call) -> str:
    """Return a product with a vector plus a bias of up to one dim."""
    return f"{'m' if call.operands[0].ndim else '?'}, m k, k -> m"


def baddbmm(call: Call) -> str:
    """Return a batched product plus a bias of up to three dims."""
    bias = ("b", "m", "n")[3 - call.operands[0].ndim :]
    return f"{' '.join(bias) or '?'}, b m k, b k n -> b m n"


# Normalization


def _normalized(call: Call, position: int) -> tuple[str, str, str]:
    """Return the dims of the input, of its statistics, and of a weight."""
    count = len(ints(call.args[position]))
    leading = dim_names(call.operands[0].ndim - count)
    inner = [f"n{dim}!" for dim in range(count)]
    return (
        " ".join([*leading, *inner]),
        " ".join([*leading, *["1"] * count]),
        " ".join(inner),
    )


def layer_norm(call: Call) -> str:
    """Return leading dims, and those that are normalized."""
    x, statistics, weight = _normalized(call, 1)
    weights = [weight] * (len(call.operands) - 1)
    return arrow([x, *weights], [x, *[statistics] * (len(call.results) - 1)])


def layer_norm_backward(call: Call) -> str:
    """Return leading dims, over which the gradients of weight and bias add up."""
    x, statistics, weight = _normalized(call, 2)
    num_statistics = len(call.results) - 1  # a mean goes with a bias
    num_weights = len(call.operands) - 2 - num_statistics
    operands = [x, x, *[statistics] * num_statistics, *[weight] * num_weights]
    return arrow(operands, [x, *[weight] * (len(call.results) - 1)])


def batch_norm(call: Call) -> str:
    """Return the channel; the others too where statistics are given, not taken.

    Where they are taken, of the whole batch, the op is taken apart for that.
    """
    functional = len(call.results) == 5
    training = functional and bool(call.args[5])
    x = " ".join(_normalized_per_channel(call.operands[0].ndim, training))
    results = [
        "? =c" if t is not None and t.shape == (0,) else "c" for t in call.results[1:]
    ]
    others = "" if training else "".join(f" ={name}" for name in _OTHERS)
    results = [f"{result}{others}" for result in results]
    return arrow([x, *["c"] * (len(call.operands) - 1)], [x, *results])


_OTHERS = ("b", "x0", "x1", "x2")


def _normalized_per_channel(ndim: int, training: bool) -> list[str]:
    mark = "!" if training else ""
    names = [f"{name}{mark}" for name in _OTHERS[: ndim - 1]]
    return [names[0], "c", *names[1:]]


def batch_norm_backward(call: Call) -> str:
    """Return the channel; the others too, as in ``batch_norm``."""
    ndim = call.operands[0].ndim
    x = " ".join(_normalized_per_channel(ndim, bool(call.args[7])))
    statistics = ["c" if t.shape != (0,) else "?" for t in call.operands[2:]]
    return arrow([x, x, *statistics], [x, "c", "c"])


def batch_norm_sums(num_images: int) -> Text:
    """Return images whose values add up by channel, then what is known of each."""

    def dims(call: Call) -> str:
        ndim = call.operands[0].ndim
        image = " ".join([_OTHERS[0], "c", *_OTHERS[1 : ndim - 1]])
        others = ["c"] * (len(call.operands) - num_images)
        return arrow([image] * num_images + others, ["c"] * len(call.results))

    return dims


# Convolution

_MAX_SPATIAL = 3


def _spatial(names: list[str], letter: str) -> str:
    """Name the spatial dims: always three, so that one product counts the flops."""
    others = [f"{letter}{dim}^:1" for dim in range(len(names), _MAX_SPATIAL)]
    last = " ".join([names[-1], *others])
    return " ".join([*names[:-1], f"({last})" if others else last])


def _convolved(call: Call, position: int, image: int) -> tuple[str, ...]:
    """Return the dims of input, weight, bias and output.

    Args:
        call: of a convolution, or of its backward.
        position: of the first argument that both have, the stride.
        image: which operand is the input; the weight is the next.
    """
    x, weight = call.operands[image : image + 2]
    groups, spatial = call.args[position + 5], weight.ndim - 2
    inputs, outputs = f"(g:{groups} i)", f"(g:{groups} o)"
    kernel = _spatial([f"k{dim}^" for dim in range(spatial)], "k")
    if is_transposed := bool(call.args[position + 3]):
        # Flops go by the smaller image's positions.
        inner = _spatial([f"y{dim}^" for dim in range(spatial)], "y")
        outer = " ".join(["?"] * spatial)
    else:
        made = call.operands[0] if image else call.results[0]
        windows = of_convolution(call, position, image)
        inner, images = dims_of(windows, marks_of(windows, x, made))
        outer = _spatial(images, "y")
    filters = f"{inputs} o" if is_transposed else f"{outputs} i"
    return (
        f"b {inputs} {inner}",
        f"{filters} {kernel}",
        outputs,
        f"b {outputs} {outer}",
    )


def convolution(call: Call) -> str:
    """Return batch, groups and channels; input channels of a group add up."""
    x, weight, bias, y = _convolved(call, 3, 0)
    return arrow([x, weight, bias][: len(call.operands)], [y])


def convolution_sum(call: Call) -> str:
    """Return a product, plus the bias where there is one."""
    return "0*1+2" if len(call.operands) == 3 else "0*1"


def convolution_backward(call: Call) -> str:
    """Return the dims of ``convolution``, its input's and weight's gradients."""
    x, weight, bias, y = _convolved(call, 4, 1)
    return arrow([y, x, weight], [x, weight, f"{bias} =i"])


def convolution_backward_flops(call: Call) -> str:
    """Return a product for each gradient that is wanted, but for the bias's."""
    wanted = sum(result is not None for result in call.results[:2])
    return f"{2 * wanted} b g o i y0 y1 y2 k0 k1 k2"


# Attention


def _attended(call: Call, position: int) -> tuple[str, str, str, list[str]]:
    """Return the dims of query, key and value, and of the mask if there is one."""
    query, key = call.operands[position : position + 2]
    heads = f"(g r:{query.shape[1] // max(key.shape[1], 1)})"
    mask = call.args[position + 3]
    masks: list[str] = []
    if isinstance(mask, TensorType):
        dims = ["b", heads, "s", "t^"][4 - mask.ndim :]
        sizes = zip(dims, mask.shape, strict=True)
        masks = [" ".join("1" if size == 1 else dim for dim, size in sizes) or "?"]
    causal = bool(call.args[-2])
    rows = "s!" if causal and mask is None else "s^" if causal else "s"
    return f"b {heads} {rows}", "b g t^ d^", "b g t^ e^", masks


def attention(call: Call) -> str:
    """Return batch, key heads, query heads of each, and query positions."""
    rows, key, value, mask = _attended(call, 0)
    return arrow([f"{rows} d^", key, value, *mask], [f"{rows} e^", rows])


def attention_flops(call: Call) -> str:
    """Return two products for each pair of positions that attend, half if causal."""
    return f"{2 if call.args[-2] else 4} b g r s t d"


def attention_backward_flops(call: Call) -> str:
    """Return five such products: the scores again, and a gradient of each operand."""
    return f"{5 if call.args[-2] else 10} b g r s t d"


def attention_backward(call: Call) -> str:
    """Return the dims of ``attention``; keys' gradients add up over its queries."""
    rows, key, value, mask = _attended(call, 1)
    out, query = f"{rows} e^", f"{rows} d^"
    return arrow([out, query, key, value, *mask, out, rows], [query, key, value])


# Embedding


def embedding_backward(call: Call) -> str:
    """Return batch dims, over which rows add up unless scaled by how many there are."""
    ndim = call.operands[1].ndim
    scaled = bool(call.args[4])  # by how often an id occurs, all told
    ids = " ".join(["?"] * ndim if scaled else dim_names(ndim)) or "?"
    return f"{ids if ndim else ''} e, {ids} -> {'?' if scaled else 'v!'} e"


# Random numbers


def random(call: Call) -> str:
    """Return a seed and one vector of indices per dim of the result."""
    dims = dim_names(len(call.operands) - 1)
    return ", ".join(["?", *dims]) + " -> " + " ".join(dims)


# Losses


def ctc_loss(call: Call) -> str:
    """Return the samples of a loss; targets one behind the other are of none."""
    if call.operands[1].ndim == 1:
        return whole(call)
    return "? b ?, b ?, b, b -> b"


def ctc_loss_backward(call: Call) -> str:
    """Return the samples, as in the loss itself."""
    if call.operands[2].ndim == 1:
        return whole(call)
    return "b, ? b ?, b ?, b, b -> ? b ?"
