"""A whole fleet on one machine or a cluster: the same machines, a memory broker, virtual time.

What runs here is what runs on devices and beside the broker; only the drivers
differ. The same seed gives the same digest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kellet.sdk import algorithms as sdk_algorithms
from kellet.sdk.algorithms import FedAvg
from kellet.sdk.personal import Personal
from kellet.sdk.personal import parse as parse_personal
from kellet.sdk.plan import Plan
from kellet.sdk.protocol.vectors import Codec
from kellet.sdk.releases import Sharing
from kellet.server import optimizers, schedules
from kellet.server.history import History, RoundRecord, State
from kellet.server.optimizers import ServerOptimizer
from kellet.server.schedules import CONSTANT, Schedule
from kellet.server.simulate.engines import ENGINES, EngineName
from kellet.server.simulate.kinds import ALL, Clients, Cohort, Kind, Manages, kinds_of
from kellet.server.simulate.simulation import RoundAbandoned, Simulation

__all__ = [
    "ENGINES",
    "Clients",
    "Cohort",
    "EngineName",
    "History",
    "Kind",
    "Manages",
    "RoundAbandoned",
    "RoundRecord",
    "Simulation",
    "State",
    "simulate",
]


def simulate(
    plan: Plan | str,
    clients: Clients,
    algorithm: FedAvg | str = "scaffold",
    *,
    server_optimizer: ServerOptimizer | str | None = None,
    schedule: Schedule | str = CONSTANT,
    rounds: int = 10,
    cohort: Cohort = None,
    seed: int = 0,
    scheme: str | Mapping[str, str] = "f32",
    shift: Literal["f32", "int8"] = "f32",
    uplink: Codec | Mapping[str, Codec] = "f32",
    downlink: Literal["f32", "q8"] = "f32",
    feedback: bool = False,
    share: float = 0.0,
    personal: Personal | str | None = None,
    holdout: float | Clients = 0.0,
    manages: Manages | None = None,
    sharing: Sharing | Mapping[str, Sharing] = ALL,
    test: tuple[ArrayLike, ArrayLike] | None = None,
    initial: State | None = None,
    engine: EngineName = "inline",
    workers: int | None = None,
    check: Literal["round", "event"] = "round",
    keep_models: bool = False,
    on_round: Callable[[RoundRecord], None] | None = None,
    on_model: Callable[[RoundRecord, NDArray[np.float32]], None] | None = None,
) -> History:
    """Train ``plan`` over ``clients`` with the product's own machines.

    ``clients`` maps an id to that client's (x, y): float32 [n, *input], int64 [n].
    ``algorithm`` is a name (with its defaults) or a value of
    ``kellet.sdk.algorithms``; ``server_optimizer`` one of ``kellet.server.algorithms``, or None
    for the plain mean. ``schedule``: of the devices' rate over the rounds
    (``kellet.server.schedules``). ``cohort``: how many clients each round asks (by ``seed``), a
    function of (round, ids) that names them, a selection (``kellet.server.selection``), or None
    for all.

    ``scheme``: how clients hold the weights they train, one name for all or a name by id
    (who is left out trains in float32). ``shift``: how SCAFFOLD's shift is held with float32
    weights. ``uplink``: the codec of delta_y, by id or for all; ``feedback``: what it left
    out is added to the next update; ``share``: k/n of ``topk``. ``downlink``: the codec of
    model and control.

    ``manages(round, id, planned)``: how many of the planned steps a client has time for.
    Fewer are partial work, which counts; with none it gives the round up.

    ``sharing``: what clients tell of their data to a selection that asks (``Similar``), all of it
    unless given, of a client that a mapping leaves out nothing.

    ``on_round`` is told each closed round, evaluated where there is a ``test``. ``on_model`` is
    told it before that, with the model after it, float32 [n_params], which lasts for the call.

    ``personal``: how each client makes a model of its own beside the fleet's, a value of
    ``kellet.sdk.personal`` or a text such as "ditto:0.1". ``holdout``: the share of its samples
    that each keeps to judge models by, or by id what each has for that beside its data; the
    history then has ``clients``. ``keep_models``: let it have all models, too.

    ``engine``: where the clients are trained. ``inline``: in this process. ``local``: in
    ``workers`` processes of this machine (its CPUs, unless given), which are spawned: call it below
    ``if __name__ == "__main__"``. ``ray``: in as many actors on a Ray cluster that is there already
    (extra ``cluster``). The result is the same, to the last bit.

    ``check="event"`` holds the invariant after every message, at a price. Raises
    ``FleetError`` where it breaks, ``RoundAbandoned`` where no client of a round has an update to
    send, and the errors of bad data and bad options.
    """
    return Simulation(
        Plan.open(plan) if isinstance(plan, str) else plan,
        clients,
        sdk_algorithms.make(algorithm) if isinstance(algorithm, str) else algorithm,
        schedule=schedules.parse(schedule) if isinstance(schedule, str) else schedule,
        server_optimizer=optimizers.make(server_optimizer)
        if isinstance(server_optimizer, str)
        else server_optimizer,
        rounds=rounds,
        cohort=cohort,
        seed=seed,
        kinds=kinds_of(
            clients, scheme=scheme, shift=shift, uplink=uplink, manages=manages, sharing=sharing
        ),
        downlink=downlink,
        feedback=feedback,
        share=share,
        personal=parse_personal(personal) if isinstance(personal, str) else personal,
        holdout=holdout,
        test=test,
        initial=initial,
        engine=engine,
        workers=workers,
        check=check,
        keep_models=keep_models,
        on_round=on_round,
        on_model=on_model,
    ).run()
