"""Weights that two layers share, made one before a model is traced.

torch's trace keeps both names of a shared parameter and then misses the
gradient of the second. So the second is taken out of its layer, and put back
as a plain attribute for the time of each forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__ = ["Tie", "share", "untie"]

# (layer, attribute) that is to hold the parameter (layer, attribute).
Tie = tuple[nn.Module, str, nn.Module, str]


def untie(model: nn.Module) -> list[Tie]:
    """Take all but the first name of each shared parameter out of ``model``."""
    first: dict[int, tuple[nn.Module, str]] = {}
    ties: list[Tie] = []
    for layer in model.modules():
        for name, parameter in list(layer._parameters.items()):
            if parameter is None:
                continue
            owner = first.setdefault(id(parameter), (layer, name))
            if owner != (layer, name):
                del layer._parameters[name]
                ties.append((layer, name, *owner))
    return ties


@contextmanager
def share(ties: list[Tie]) -> Iterator[None]:
    """Let each layer see the parameter that it shares."""
    for layer, name, owner, owned in ties:
        layer.__dict__[name] = getattr(owner, owned)
    try:
        yield
    finally:
        for layer, name, _, _ in ties:
            del layer.__dict__[name]
