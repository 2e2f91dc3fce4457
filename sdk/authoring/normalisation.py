"""Group and batch normalisation in closed form: few passes over the data.

The forward passes keep x - mean; the backward passes are those of Ioffe and
Szegedy (arXiv 1502.03167, section 3) and Wu and He (arXiv 1803.08494):

    grad_x = (g - mean(g) - x_hat * mean(g * x_hat)) / deviation,  g = grad * weight
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["batch_norm", "group_norm", "group_norm_backward"]


# Signatures here are those of the aten operators.
def group_norm(  # noqa: PLR0917
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    batch: int,
    channels: int,
    places: int,
    groups: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """``aten.native_group_norm``: (y, mean, 1 / deviation) of x [B, C, ...]."""
    grouped = x.reshape(batch, groups, -1)
    mean = grouped.mean(-1, keepdim=True)
    centred = grouped - mean
    scale = torch.rsqrt((centred * centred).mean(-1, keepdim=True) + eps)
    y = _affine((centred * scale).reshape(x.shape), weight, bias)
    return y, mean.squeeze(-1), scale.squeeze(-1)


def group_norm_backward(  # noqa: PLR0917
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    scale: Tensor,
    weight: Tensor | None,
    batch: int,
    channels: int,
    places: int,
    groups: int,
    mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of (x, weight, bias) of `group_norm`, where ``mask`` asks."""
    but_channels = [0, *range(2, x.dim())]
    x_hat = (x.reshape(batch, groups, -1) - mean.unsqueeze(-1)) * scale.unsqueeze(-1)
    of_x = of_weight = None
    if mask[1]:
        of_weight = (grad * x_hat.reshape(x.shape)).sum(but_channels)
    if mask[0]:
        g = _affine(grad, weight, None).reshape(batch, groups, -1)
        along = (g * x_hat).mean(-1, keepdim=True)
        of_x = (g - g.mean(-1, keepdim=True) - x_hat * along) * scale.unsqueeze(-1)
        of_x = of_x.reshape(x.shape)
    return of_x, of_weight, grad.sum(but_channels) if mask[2] else None


def batch_norm(  # noqa: PLR0917
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """``aten._native_batch_norm_legit_functional`` of x [B, C, ...].

    Returns y, the batch's mean and 1 / deviation, and the new running mean and
    variance. In evaluation the running ones are used and stay.

    torch refuses a single value a channel, whose unbiased variance is 0 / 0.
    A device's last batch may be that short, so here it counts as zero.
    """
    if not training:
        scale = torch.rsqrt(running_var + eps)
        y = _affine((x - _channels(running_mean, x)) * _channels(scale, x), weight, bias)
        return y, running_mean.new_zeros(0), running_mean.new_zeros(0), running_mean, running_var
    but_channels = [0, *range(2, x.dim())]
    mean = x.mean(but_channels, keepdim=True)
    centred = x - mean
    variance = (centred * centred).mean(but_channels, keepdim=True)
    scale = torch.rsqrt(variance + eps)
    # The number of values as a tensor: it depends on the size of the batch.
    ones = torch.ones_like(x[:, :1]).sum()
    unbiased = variance.reshape(-1) * (ones / torch.clamp(ones - 1.0, min=1.0))
    return (
        _affine(centred * scale, weight, bias),
        mean.reshape(-1),
        scale.reshape(-1),
        running_mean * (1 - momentum) + mean.reshape(-1) * momentum,
        running_var * (1 - momentum) + unbiased * momentum,
    )


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if weight is not None:
        x = x * _channels(weight, x)
    if bias is not None:
        x = x + _channels(bias, x)
    return x


def _channels(vector: Tensor, x: Tensor) -> Tensor:
    return vector.reshape([1, -1] + [1] * (x.dim() - 2))
