"""The device half of each algorithm, as values.

An algorithm is a frozen dataclass: its hyperparameters, and how a local step is
made, on float32 weights and on int8 ones. Floats are rounded to float32 when
the value is made, so that both sides of the link hold the same numbers. How the
server mixes what devices send is the other half (``kellet.server.halves``).

>>> Scaffold(local_lr=0.1, local_steps=2).wire()["name"]
'scaffold'
"""

from kellet.sdk.algorithms.averaging import FedAvg, Int8Step, Int8Work, Step, Work
from kellet.sdk.algorithms.controlled import Scaffold, ScaffoldM
from kellet.sdk.algorithms.dynamic import FedDyn
from kellet.sdk.algorithms.lookahead import PerFedAvg
from kellet.sdk.algorithms.normalised import FedNova
from kellet.sdk.algorithms.proximal import FedProx
from kellet.sdk.algorithms.registry import ALGORITHMS, from_wire, make, make_one_of, register

__all__ = [
    "ALGORITHMS",
    "FedAvg",
    "FedDyn",
    "FedNova",
    "FedProx",
    "Int8Step",
    "Int8Work",
    "PerFedAvg",
    "Scaffold",
    "ScaffoldM",
    "Step",
    "Work",
    "from_wire",
    "make",
    "make_one_of",
    "register",
]

for _kind in (FedAvg, FedProx, Scaffold, ScaffoldM, FedDyn, FedNova, PerFedAvg):
    register(_kind)
