"""Which torch operator is taken apart by which function.

torch's core table, with entries of our own where its result has no ONNX
counterpart or is slow in onnxruntime. The backward passes of activations with
a threshold are written as comparison, cast and product: in onnxruntime that is
9.6 times faster than Where.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from kellet.sdk.authoring import convolution, normalisation, pooling
from kellet.sdk.authoring.torch_private import Decompositions, core_decompositions

__all__ = ["decompositions"]

aten = torch.ops.aten


def decompositions() -> Decompositions:
    """Return the table with which models are traced."""
    return core_decompositions() | {
        aten.convolution_backward.default: convolution.convolution_backward,
        aten.max_pool2d_with_indices.default: pooling.max_pool2d,
        aten.max_pool2d_with_indices_backward.default: pooling.max_pool2d_backward,
        aten.avg_pool2d_backward.default: pooling.avg_pool2d_backward,
        aten._adaptive_avg_pool2d_backward.default: pooling.adaptive_avg_pool2d_backward,
        aten.native_group_norm.default: normalisation.group_norm,
        aten.native_group_norm_backward.default: normalisation.group_norm_backward,
        aten._native_batch_norm_legit_functional.default: normalisation.batch_norm,
        aten.threshold_backward.default: _threshold_backward,
        aten.hardtanh_backward.default: _hardtanh_backward,
        aten.hardswish_backward.default: _hardswish_backward,
        aten.silu_backward.default: _silu_backward,
        aten.mish_backward.default: _mish_backward,
        aten.empty_permuted.default: _empty_permuted,
    }


def _threshold_backward(grad: Tensor, x: Tensor, threshold: float) -> Tensor:
    return grad * (x > threshold).to(grad.dtype)


def _hardtanh_backward(grad: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    return grad * ((x > low) & (x < high)).to(grad.dtype)


def _hardswish_backward(grad: Tensor, x: Tensor) -> Tensor:
    rising = ((x > -3) & (x < 3)).to(grad.dtype) * (x * (1 / 3) + 0.5)
    return grad * (rising + (x >= 3).to(grad.dtype))


def _silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    gate = torch.sigmoid(x)
    return grad * (gate * (1 + x * (1 - gate)))


def _mish_backward(grad: Tensor, x: Tensor) -> Tensor:
    bent = torch.tanh(F.softplus(x))
    return grad * (bent + x * torch.sigmoid(x) * (1 - bent * bent))


def _empty_permuted(size: Sequence[int], order: Sequence[int], **options: Any) -> Tensor:
    # ONNX has no memory layout; what is empty is written before it is read.
    return torch.zeros(size, dtype=options.get("dtype") or torch.float32)
