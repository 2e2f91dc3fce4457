"""Pooling forward and backward, in operators that ONNX inference has."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kellet.sdk.authoring import operators
from kellet.sdk.authoring.convolution import Geometry, per_axis
from kellet.sdk.errors import ExportRefused

__all__ = [
    "adaptive_avg_pool2d_backward",
    "avg_pool2d_backward",
    "max_pool2d",
    "max_pool2d_backward",
]


# Signatures here are those of the aten operators.
def max_pool2d(  # noqa: PLR0917
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """``aten.max_pool2d_with_indices``, with places counted over the whole tensor."""
    _refuse_ceil_mode("max pooling", ceil_mode)
    kernel = per_axis(kernel, 2)
    stride = per_axis(stride, 2) or kernel
    pooled: tuple[Tensor, Tensor] = operators.max_pool(
        x, kernel, stride, per_axis(padding, 2), per_axis(dilation, 2)
    )
    return pooled


def max_pool2d_backward(  # noqa: PLR0917
    grad: Tensor,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    places: Tensor,
) -> Tensor:
    """Send each gradient to the place of its maximum."""
    kernel = per_axis(kernel, 2)
    apart = (per_axis(stride, 2) or kernel) == kernel and per_axis(dilation, 2) == [1, 1]
    flat = torch.zeros_like(x).reshape(-1)
    where, what = places.reshape(-1), grad.reshape(-1)
    # Windows that do not overlap never name a place twice, and a plain scatter is faster.
    summed = flat.scatter(0, where, what) if apart else flat.scatter_add(0, where, what)
    return summed.reshape(x.shape)


def avg_pool2d_backward(  # noqa: PLR0917
    grad: Tensor,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> Tensor:
    """Spread each gradient evenly over its window."""
    _refuse_ceil_mode("average pooling", ceil_mode)
    kernel = per_axis(kernel, 2)
    stride, padding = per_axis(stride, 2) or kernel, per_axis(padding, 2)
    size, out = x.shape[-2:], grad.shape[-2:]
    count = divisor or kernel[0] * kernel[1]
    if any(padding) and not count_include_pad and not divisor:
        inside = [_inside(*axis) for axis in zip(out, size, kernel, stride, padding, strict=True)]
        grad = grad * (count / (inside[0][:, None] * inside[1][None, :]))
    spread: Tensor
    tiled = [o * k for o, k in zip(out, kernel, strict=True)] == [*size]
    if stride == kernel and not any(padding) and tiled:
        spread = operators.repeat(grad * (1.0 / count), kernel)
        return spread
    even = torch.full((1, 1, *kernel), 1.0 / count, dtype=grad.dtype)
    extra = Geometry(kernel, stride, padding, [1, 1]).output_padding(size, out)
    planes = grad.reshape(-1, 1, *out)
    spread = operators.conv_transpose(planes, even, stride, padding, [1, 1], extra, 1)
    return spread.reshape(x.shape)


def adaptive_avg_pool2d_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Spread each gradient evenly over its window of adaptive size."""
    (height, width), (rows, columns) = x.shape[-2:], grad.shape[-2:]
    if height % rows == 0 and width % columns == 0:
        times = [height // rows, width // columns]
        spread: Tensor = operators.repeat(grad * (1.0 / (times[0] * times[1])), times)
        return spread
    # Windows of unequal sizes: two small constant matrices say who shares what.
    return _shares(height, rows).t() @ (grad @ _shares(width, columns))


# A trace takes constants that are computed, and none that are filled in.


def _inside(windows: int, size: int, kernel: int, stride: int, padding: int) -> Tensor:
    """[windows]: how many elements of each window are not padding."""
    start = torch.arange(windows) * stride - padding
    return (torch.clamp(start + kernel, max=size) - torch.clamp(start, min=0)).to(torch.float32)


def _shares(size: int, windows: int) -> Tensor:
    """[windows, size]: the weight of each element in the mean of each adaptive window."""
    window, at = torch.arange(windows)[:, None], torch.arange(size)[None, :]
    start = torch.div(window * size, windows, rounding_mode="floor")
    end = torch.div((window + 1) * size + windows - 1, windows, rounding_mode="floor")
    return ((at >= start) & (at < end)).to(torch.float32) / (end - start)


def _refuse_ceil_mode(what: str, ceil_mode: bool) -> None:
    if ceil_mode:
        raise ExportRefused(
            f"{what} has ceil_mode=True",
            why="windows that hang over the edge have no gradient here",
            repair="pad the input, or set ceil_mode=False",
        )
