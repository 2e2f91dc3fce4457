"""The calls into torch that torch does not promise to keep. All of them are here.

Tried with torch 2.13. Where a release moves one of these, this file changes
and no other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch.export import ExportedProgram

__all__ = ["Decompositions", "core_decompositions", "is_random", "joint_graph"]

Decompositions = dict[Any, Callable[..., Any]]


def core_decompositions() -> Decompositions:
    """Return torch's own decompositions to its core operators."""
    from torch._decomp import core_aten_decompositions

    return cast(Decompositions, dict(core_aten_decompositions()))


def joint_graph(program: ExportedProgram, table: Decompositions) -> ExportedProgram:
    """Return forward and backward as one graph.

    The first output of ``program`` is the scalar that is differentiated, with
    respect to each parameter that requires a gradient. The public
    ``_export_forward_backward`` takes no table of decompositions, and without
    ours the result cannot be written as ONNX.
    """
    from torch.export.exported_program import _decompose_exported_program

    return cast(
        ExportedProgram,
        _decompose_exported_program(
            program,
            cia_to_decomp={},
            python_decomp_table=table,
            joint_loss_index=0,
            decompose_custom_triton_ops=False,
        ),
    )


def is_random(operator: object) -> bool:
    """Does the operator draw random numbers?"""
    return (
        isinstance(operator, torch._ops.OpOverload)
        and torch.Tag.nondeterministic_seeded in operator.tags
    )
