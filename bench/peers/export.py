"""Write the plan of a net: python -m bench.peers.export NET FILE. The sides' own nets, in torch."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from bench.peers.sides.nets import NETS
from kellet.sdk.authoring import export

_EXAMPLES = {"mlp": (43,), "cnn": (1, 14, 14)}
_CLASSES = {"mlp": 6, "cnn": 10}


def main(net: str, path: str) -> None:
    torch.manual_seed(20240)
    model = NETS[net]()
    labels = torch.arange(10) % _CLASSES[net]
    plan = export(model, None, torch.randn(10, *_EXAMPLES[net]), labels, name=f"peers-{net}")
    Path(path).write_bytes(plan.raw)


if __name__ == "__main__":
    main(*sys.argv[1:])
