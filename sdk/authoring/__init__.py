"""Authoring: from a PyTorch model to a plan. Needs the extra ``authoring``.

`export` traces a model; `write_bundle` takes graphs made by hand and needs
neither torch nor onnx. torch is imported when `export` is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kellet.sdk.authoring.bundle import Tensor, write_bundle
from kellet.sdk.errors import ExtraMissing

if TYPE_CHECKING:
    from kellet.sdk.authoring.exporter import export

__all__ = ["Tensor", "export", "write_bundle"]


def __getattr__(name: str) -> Any:
    if name != "export":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from kellet.sdk.authoring.exporter import export
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("kellet"):
            raise
        raise ExtraMissing("authoring", error.name or "torch") from None
    return export
