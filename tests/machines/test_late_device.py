"""A device whose work outlives its announcement: it goes on, and joins the newer round after."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from machines.alone import Alone, N, outcome

from kellet.sdk.device import Leave, Trained, TrainingStopped
from kellet.sdk.protocol import wire
from kellet.sdk.protocol.messages import Abort, Idle, Join, Late, Offer, Train, Welcome
from kellet.sdk.transport.base import Connected, Disconnected, Received

LATE: dict[str, Any] = {"late": Late(buffer=1, max_stale=2), "valid": 180.0}


def fetching() -> tuple[Alone, bytes]:
    """Told to train in round 1; nothing is here yet."""
    alone = Alone()
    alone.connect()
    alone.welcome()
    base = alone.announce(1, **LATE)
    alone.hear(Train(round=1, base=base, seconds=50.0))
    assert alone.machine.doing == "fetching"
    return alone, base


def move_on(alone: Alone, number: int, **changes: Any) -> bytes:
    """A newer round, with a model of its own; the announcement's hash."""
    alone.model = np.full(N, float(number), np.float32).tobytes()
    return alone.announce(number, **(LATE | changes))


def test_training_goes_on_and_the_update_names_its_own_announcement() -> None:
    alone = Alone()
    base = alone.train(1, **LATE)
    second = move_on(alone, 2)
    assert alone.machine.training_base == base
    (offer,) = alone.said(alone.step(Trained(base, outcome())))
    assert isinstance(offer, Offer)
    assert (offer.round, offer.base) == (1, base)
    (join,) = alone.receipt(offer)
    assert isinstance(join, Join)
    assert (join.round, join.base) == (2, second)
    assert alone.store.control(N).tolist() == [2**48] * N


def test_a_fetch_goes_on_and_trains_from_what_it_fetched() -> None:
    alone, base = fetching()
    model = alone.model
    move_on(alone, 2)
    assert alone.machine.doing == "fetching"
    for data in (model, alone.control):
        alone.serve(data)
    assert alone.machine.training_base == base
    assert hashlib.sha256(model).digest() in alone.cache


def test_work_that_nobody_will_count_is_dropped() -> None:
    for begin in (lambda: fetching()[0], _training):
        alone = begin()
        for number in (2, 3):
            move_on(alone, number)
            assert alone.machine.doing in ("fetching", "training")
        move_on(alone, 4)
        assert alone.machine.doing == "joining"
        assert alone.machine.training_base is None


def _training() -> Alone:
    alone = Alone()
    alone.train(1, **LATE)
    return alone


def test_work_is_dropped_for_a_round_that_drops() -> None:
    alone = _training()
    alone.announce(2)
    assert alone.machine.doing == "joining"


def test_work_of_an_epoch_that_is_over_is_dropped() -> None:
    alone = _training()
    move_on(alone, 2, epoch=2)
    assert alone.machine.doing == "joining"
    assert alone.store.epoch == 2


def test_work_is_dropped_when_the_rounds_are_over() -> None:
    alone = _training()
    alone.step(Received(alone.topics.round, wire.pack(Idle(reason="finished", round=1))))
    assert alone.machine.doing == "nothing"


def test_leaving_does_not_wait_for_the_work() -> None:
    alone = _training()
    move_on(alone, 2)
    (offer,) = alone.said(alone.step(Leave()))
    assert isinstance(offer, Offer)
    assert offer.round == 0


def test_a_training_that_stops_says_of_which_round_and_joins_the_newer() -> None:
    alone = _training()
    base = alone.machine.training_base
    assert base is not None
    move_on(alone, 2)
    said = alone.said(alone.step(TrainingStopped(base, "no loss")))
    assert [type(message) for message in said] == [Abort, Join]
    assert [message.round for message in said] == [1, 2]


def test_an_outcome_of_dropped_work_is_forgotten() -> None:
    alone = _training()
    base = alone.machine.training_base
    assert base is not None
    move_on(alone, 4)
    assert alone.said(alone.step(Trained(base, outcome()))) == []
    assert alone.store.pending_uid() is None


def test_a_link_that_comes_back_in_another_round() -> None:
    """The work went on without it."""
    alone = _training()
    base = alone.machine.training_base
    alone.step(Disconnected("cut"))
    alone.step(Connected(None))
    move_on(alone, 2)
    assert alone.machine.training_base == base
    assert base is not None
    alone.step(Trained(base, outcome()))
    (offer,) = alone.welcome()
    assert isinstance(offer, Offer)
    assert offer.base == base


def test_a_new_epoch_by_welcome_ends_the_work() -> None:
    alone = _training()
    base = alone.machine.training_base
    move_on(alone, 2)
    alone.step(Disconnected("cut"))
    alone.step(Connected(None))
    alone.hear(Welcome(boot=b"boot-one", epoch=2, receipt=None, audit="none"))
    assert alone.machine.training_base is None
    assert base is not None
    assert alone.said(alone.step(Trained(base, outcome()))) == []


def test_half_of_the_rounds_are_for_training() -> None:
    """Of two rounds that may count it, the second finds it sending."""
    alone = _training()
    assert not alone.machine.hurried
    move_on(alone, 2)
    assert not alone.machine.hurried
    base = alone.machine.training_base
    move_on(alone, 3)
    assert alone.machine.hurried
    assert alone.machine.training_base == base
    assert base is not None
    (offer,) = alone.said(alone.step(Trained(base, outcome(stopped="the rounds have gone on"))))
    assert offer.round == 1
    assert not alone.machine.hurried


def test_rounds_that_drop_hurry_nobody() -> None:
    alone = Alone()
    alone.train(1)
    assert not alone.machine.hurried
