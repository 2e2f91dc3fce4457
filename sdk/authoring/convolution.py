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

import torch
from torch import Tensor

from kellet.sdk.authoring import operators
from kellet.sdk.errors import ExportRefused

__all__ = ["convolution_backward", "output_padding_of", "per_axis"]

aten = torch.ops.aten

_Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


def convolution_backward(
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
    stride, padding, dilation = (per_axis(v, rank) for v in (stride, padding, dilation))
    of_bias = grad.sum([0, *range(2, 2 + rank)]) if mask[2] else None
    if transposed:
        of_x, of_weight = _transposed(grad, x, weight, stride, padding, dilation, groups, mask)
        return of_x, of_weight, of_bias
    of_x = of_weight = None
    if mask[0]:
        extra = [
            output_padding_of(
                x.shape[2 + a], grad.shape[2 + a], weight.shape[2 + a], stride[a], padding[a], d
            )
            for a, d in enumerate(dilation)
        ]
        of_x = operators.conv_transpose(grad, weight, stride, padding, dilation, extra, groups)
    if mask[1]:
        of_weight = _of_weight(grad, x, weight, stride, padding, dilation, groups)
    return of_x, of_weight, of_bias


def output_padding_of(
    in_size: int, out_size: int, kernel: int, stride: int, padding: int, dilation: int
) -> int:
    """Rows of the input beyond the last window, which a transposed convolution must add."""
    return in_size - ((out_size - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1)


def per_axis(values: Sequence[int], rank: int) -> list[int]:
    """Spread a single value over all spatial axes."""
    return list(values) * rank if len(values) == 1 else list(values)


def _of_weight(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    batch, channels, out_channels = x.shape[0], x.shape[1], weight.shape[0]
    kernel, out = weight.shape[2:], grad.shape[2:]
    taps, places = math.prod(kernel), math.prod(out)
    per_group, out_per_group = channels // groups, out_channels // groups
    if taps == 1 and groups == 1 and not any(padding) and all(s == 1 for s in stride):
        flat_grad = grad.transpose(0, 1).reshape(out_channels, -1)
        flat_x = x.transpose(0, 1).reshape(channels, -1)
        return (flat_grad @ flat_x.t()).reshape(weight.shape)
    pieces = _taps(x, kernel, stride, padding, dilation, out)
    if groups == 1:
        # Joined on the channel axis, patches are few, long, contiguous copies.
        patches = torch.cat(pieces, 1).reshape(batch, taps * channels, places)
        product = grad.reshape(batch, out_channels, places) @ patches.transpose(1, 2)
        by_tap = product.sum(0).reshape([out_channels, *kernel, channels])
        rank = len(kernel)
        return by_tap.permute(0, rank + 1, *range(1, rank + 1))
    stacked = torch.stack(pieces, 2)  # [B, C, taps, *out]
    if per_group == 1 and out_per_group == 1:
        patches = stacked.reshape(batch, channels, taps, places)
        product = patches @ grad.reshape(batch, channels, places, 1)
        return product.sum(0).reshape(weight.shape)
    patches = stacked.reshape(batch, groups, per_group * taps, places)
    product = grad.reshape(batch, groups, out_per_group, places) @ patches.transpose(2, 3)
    return product.sum(0).reshape(weight.shape)


def _taps(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    out: Sequence[int],
) -> list[Tensor]:
    """The input as each tap of the kernel sees it: [B, C, *out] for each tap."""
    if any(padding):
        x = operators.zero_pad(x, list(padding))
    rank = len(kernel)
    pieces = []
    for tap in itertools.product(*(range(size) for size in kernel)):
        start = [tap[a] * dilation[a] for a in range(rank)]
        end = [start[a] + (out[a] - 1) * stride[a] + 1 for a in range(rank)]
        pieces.append(operators.window(x, start, end, list(stride)))
    return pieces


def _transposed(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:
    """Input and output change roles: the gradient of the input is a convolution."""
    zeros = [0] * len(stride)
    of_x = of_weight = None
    if mask[0]:
        of_x = aten.convolution(grad, weight, None, stride, padding, dilation, False, zeros, groups)
    if mask[1]:
        if groups != 1:
            raise ExportRefused(
                "a transposed convolution has groups",
                why="the gradient of its weight is not written",
                repair="use groups=1, or repeat and convolve",
            )
        of_weight = _of_weight(x, grad, weight, stride, padding, dilation, 1)
    return of_x, of_weight
