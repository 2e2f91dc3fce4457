"""Variants of a plan: other ways to hold its weights, or fewer of them to train.

Derived from the plan's own graphs by ONNX -> ONNX rewriting, so torch is not
needed, only ``onnx`` (extra ``authoring``). Devices need neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kellet.sdk.errors import ExtraMissing

if TYPE_CHECKING:
    from kellet.sdk.variants.derive import add_variants, unfit
    from kellet.sdk.variants.selection import sparse

__all__ = ["add_variants", "sparse", "unfit"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        if name == "sparse":
            from kellet.sdk.variants.selection import sparse

            return sparse
        from kellet.sdk.variants import derive
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("kellet"):
            raise
        raise ExtraMissing("authoring", error.name or "onnx") from None
    return getattr(derive, name)
