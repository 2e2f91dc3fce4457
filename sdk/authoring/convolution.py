"""The backward pass of convolution, in operators that ONNX inference has.

ONNX has no operator for the gradients of Conv. The gradient of the input is a
transposed convolution with the same kernel. That of the kernel is one matrix
product between the output's gradient and the patches of the input (im2col),
and the patches are cut with one Slice for each tap of the kernel.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kellet.sdk.authoring import operators
from kellet.sdk.errors import ExportRefused

__all__ = ["Geometry", "convolution_backward", "per_axis"]

aten = torch.ops.aten

_Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


@dataclass(frozen=True)
class Geometry:
    """How a kernel moves over the spatial axes of its input; one entry an axis."""

    kernel: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.kernel)

    def output_padding(self, in_size: Sequence[int], out_size: Sequence[int]) -> list[int]:
        """Rows of the input beyond the last window, which a transposed convolution adds."""
        return [
            in_size[a]
            - (out_size[a] - 1) * self.stride[a]
            + 2 * self.padding[a]
            - self.dilation[a] * (self.kernel[a] - 1)
            - 1
            for a in range(self.rank)
        ]


def per_axis(values: Sequence[int], rank: int) -> list[int]:
    """Spread a single value over all spatial axes."""
    return list(values) * rank if len(values) == 1 else list(values)


# The signature is that of aten.convolution_backward.
def convolution_backward(  # noqa: PLR0917
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    mask: Sequence[bool],
) -> _Gradients:
    """Gradients of (input, weight, bias) of ``aten.convolution``, where ``mask`` asks.

    grad: [B, O, *out], x: [B, C, *in], weight: [O, C/groups, *kernel], or
    [C, O/groups, *kernel] when transposed.
    """
    rank = weight.dim() - 2
    moves = Geometry(weight.shape[2:], *(per_axis(v, rank) for v in (stride, padding, dilation)))
    of_bias = grad.sum([0, *range(2, 2 + rank)]) if mask[2] else None
    if transposed:
        of_x, of_weight = _transposed(grad, x, weight, moves, groups, mask)
        return of_x, of_weight, of_bias
    of_x = of_weight = None
    if mask[0]:
        of_x = operators.conv_transpose(
            grad,
            weight,
            moves.stride,
            moves.padding,
            moves.dilation,
            moves.output_padding(x.shape[2:], grad.shape[2:]),
            groups,
        )
    if mask[1]:
        of_weight = _of_weight(grad, x, weight, moves, groups)
    return of_x, of_weight, of_bias


def _of_weight(grad: Tensor, x: Tensor, weight: Tensor, moves: Geometry, groups: int) -> Tensor:
    batch, channels, out_channels = x.shape[0], x.shape[1], weight.shape[0]
    taps, places = math.prod(moves.kernel), math.prod(grad.shape[2:])
    plain = not any(moves.padding) and all(step == 1 for step in moves.stride)
    if taps == 1 and groups == 1 and plain:
        flat_grad = grad.transpose(0, 1).reshape(out_channels, -1)
        flat_x = x.transpose(0, 1).reshape(channels, -1)
        return (flat_grad @ flat_x.t()).reshape(weight.shape)
    pieces = _taps(x, moves, grad.shape[2:])
    if groups == 1:
        # Joined on the channel axis, patches are few, long, contiguous copies.
        patches = torch.cat(pieces, 1).reshape(batch, taps * channels, places)
        product = grad.reshape(batch, out_channels, places) @ patches.transpose(1, 2)
        by_tap = product.sum(0).reshape([out_channels, *moves.kernel, channels])
        return by_tap.permute(0, moves.rank + 1, *range(1, moves.rank + 1))
    stacked = torch.stack(pieces, 2)  # [B, C, taps, *out]
    if groups == channels == out_channels:
        patches = stacked.reshape(batch, channels, taps, places)
        product = patches @ grad.reshape(batch, channels, places, 1)
        return product.sum(0).reshape(weight.shape)
    patches = stacked.reshape(batch, groups, channels // groups * taps, places)
    by_group = grad.reshape(batch, groups, out_channels // groups, places)
    return (by_group @ patches.transpose(2, 3)).sum(0).reshape(weight.shape)


def _taps(x: Tensor, moves: Geometry, out: Sequence[int]) -> list[Tensor]:
    """The input as each tap of the kernel sees it: [B, C, *out] for each tap."""
    if any(moves.padding):
        x = operators.zero_pad(x, list(moves.padding))
    pieces = []
    for tap in itertools.product(*(range(size) for size in moves.kernel)):
        start = [at * by for at, by in zip(tap, moves.dilation, strict=True)]
        end = [start[a] + (out[a] - 1) * moves.stride[a] + 1 for a in range(moves.rank)]
        pieces.append(operators.window(x, start, end, list(moves.stride)))
    return pieces


def _transposed(  # noqa: PLR0917
    grad: Tensor, x: Tensor, weight: Tensor, moves: Geometry, groups: int, mask: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Input and output change roles: the gradient of the input is a convolution."""
    of_x = of_weight = None
    if mask[0]:
        zeros = [0] * moves.rank
        of_x = aten.convolution(
            grad, weight, None, moves.stride, moves.padding, moves.dilation, False, zeros, groups
        )
    if mask[1]:
        if groups != 1:
            raise ExportRefused(
                "a transposed convolution has groups",
                why="the gradient of its weight is not written",
                repair="use groups=1, or repeat and convolve",
            )
        of_weight = _of_weight(x, grad, weight, moves, groups)
    return of_x, of_weight
