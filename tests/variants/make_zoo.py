"""Make tests/variants/zoo: the models of ``support.zoo`` as plans without variants.

    PYTHONPATH=tests python tests/variants/make_zoo.py

Their export takes minutes, so they are kept.
"""

from __future__ import annotations

from pathlib import Path

from support.zoo import ZOO

from kellet.sdk.authoring import export


def main() -> None:
    for name, entry in ZOO.items():
        model, x, y = entry.example()
        plan = export(model, None, x, y, name=name, low=entry.low, high=entry.high, schemes=())
        (Path(__file__).parent / "zoo" / f"{name}.kplan").write_bytes(plan.raw)
        print(name, len(plan.raw), "bytes")


if __name__ == "__main__":
    main()
