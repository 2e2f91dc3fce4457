"""What a device says of its data: nothing unless its owner shares it, and noise once."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from machines.alone import BOOT, PLAN, Alone

from kellet.sdk.blobs import BlobCache
from kellet.sdk.device import DeviceMachine
from kellet.sdk.errors import UsageError
from kellet.sdk.histogram import to_shares
from kellet.sdk.protocol.histograms import Histogram, Question
from kellet.sdk.protocol.messages import Decline, Hello, Join, Reject
from kellet.sdk.releases import Sharing
from kellet.sdk.store import Store
from kellet.sdk.telling import describe
from kellet.sdk.work import Describe

ASKED = Question(classes=3, columns=(0,), edges=((0.5,),))
OTHER = Question(classes=3, columns=(0,), edges=((0.25,),))
X = np.array([[0.0], [1.0], [1.0], [1.0]], np.float32)
Y = np.array([0, 2, 2, 2])


class Sharer(Alone):
    """A device that counts at once, over a store that outlives it."""

    def __init__(
        self, sharing: Sharing, store: Store | None = None, *, seed: int = 0, y: Any = Y
    ) -> None:
        super().__init__()
        self.y = y
        self.counted = 0
        self.store = store or self.store
        self.cache = BlobCache()
        self.cache.put(PLAN.raw)
        self.machine = DeviceMachine(
            self.topics,
            self.store,
            self.cache,
            boot=BOOT,
            sharing=sharing,
            below=random.Random(seed).randrange,
        )

    def step(self, event: Any) -> list[Any]:
        made = super().step(event)
        for effect in list(made):
            if isinstance(effect, Describe):
                self.counted += 1
                made += self.step(describe(effect, X, self.y))
        return made

    def meet(self, question: Question | None = ASKED, number: int = 1) -> list[Any]:
        """Connect and be welcomed, hear an announcement that asks; all that is said."""
        said = self.connect()
        said += self.welcome()
        said += self.hear_round(question, number)
        return said

    def hear_round(self, question: Question | None, number: int) -> list[Any]:
        before = len(self.effects)
        self.announce(number, histogram=msgspec.UNSET if question is None else question)
        said = self.said(self.effects[before:])
        if said and isinstance(said[-1], Hello):
            said += self.welcome()
        return said


def told(said: list[Any]) -> list[Any]:
    """What the hellos say of histograms."""
    return [m.histogram for m in said if isinstance(m, Hello)]


def exact(question: Question, counts: list[int]) -> Histogram:
    return Histogram(question=question.name, shares=to_shares(counts, question.groups))


def test_by_default_nothing_is_counted_and_nothing_said() -> None:
    device = Sharer(Sharing())
    said = device.meet()
    assert [type(m) for m in said] == [Hello, Join]
    assert told(said) == [msgspec.UNSET]
    assert device.counted == 0
    # On the wire there is not even the word.
    sent = [e.payload for e in device.effects if hasattr(e, "payload")]
    assert sent
    assert not any(b"histogram" in payload for payload in sent)


def test_nothing_is_said_that_is_not_asked_for() -> None:
    device = Sharer(Sharing("labels+features"))
    assert told(device.meet(None)) == [msgspec.UNSET]
    assert device.counted == 0


def test_what_is_asked_is_told_before_the_device_joins() -> None:
    device = Sharer(Sharing("labels+features"))
    said = device.meet()
    assert [type(m) for m in said] == [Hello, Hello, Join]
    assert told(said) == [msgspec.UNSET, exact(ASKED, [1, 0, 3, 1, 3])]
    assert [r["new"] for r in device.reports("histogram")] == [True]


def test_whoever_shares_labels_tells_no_features() -> None:
    device = Sharer(Sharing("labels"))
    assert told(device.meet())[-1] == exact(ASKED.labels, [1, 0, 3])


def test_columns_that_the_data_has_not_leave_the_labels() -> None:
    device = Sharer(Sharing("labels+features"))
    beyond = Question(classes=3, columns=(7,), edges=((0.0,),))
    assert told(device.meet(beyond))[-1] == exact(beyond.labels, [1, 0, 3])


def test_it_is_said_again_at_each_connection_and_counted_once_a_process() -> None:
    device = Sharer(Sharing("labels"))
    first = told(device.meet())[-1]
    assert device.hear_round(ASKED, 2)[-1].round == 2
    assert device.counted == 1
    assert told(device.connect()) == [first]
    # The next process says it at once, before it has looked at the data.
    after = Sharer(Sharing("labels"), device.store)
    assert told(after.connect()) == [first]
    assert after.counted == 0


def test_a_device_that_may_not_train_does_not_load_its_data() -> None:
    device = Sharer(Sharing("labels"))
    device.machine._consent = lambda: "not charging"
    assert isinstance(device.meet()[-1], Decline)
    assert device.counted == 0


def test_while_it_counts_it_does_not_join() -> None:
    device = Alone()
    device.machine = DeviceMachine(
        device.topics, device.store, device.cache, boot=BOOT, sharing=Sharing("labels")
    )
    device.connect()
    device.welcome()
    device.announce(1, histogram=ASKED)
    assert device.machine.doing == "counting"
    assert device.wait(300) == []
    device.announce(2, histogram=ASKED)
    assert device.machine.doing == "counting"
    (hello,) = device.said(device.step(describe(Describe(ASKED.labels), X, Y)))
    assert isinstance(hello, Hello)
    (join,) = device.welcome()
    assert isinstance(join, Join)
    assert join.round == 2


# -- noise --------------------------------------------------------------------------------


def test_noise_is_that_of_the_seed_and_hides_the_counts() -> None:
    noisy = Sharing("labels", 0.5)
    (_, one), (_, same), (_, other) = (told(Sharer(noisy, seed=seed).meet()) for seed in (4, 4, 5))
    assert one == same
    assert one.epsilon == 0.5
    assert one.shares != other.shares
    assert one.shares != exact(ASKED.labels, [1, 0, 3]).shares


def test_noise_is_never_drawn_again(tmp_path: Path) -> None:
    noisy = Sharing("labels+features", 0.5)
    path = tmp_path / "device.db"
    first = told(Sharer(noisy, Store("a", path), seed=1).meet())[-1]
    for seed in range(2, 6):
        store = Store("a", path)
        device = Sharer(noisy, store, seed=seed)
        assert told(device.meet(OTHER)) == [first]  # other edges: the old answer, no new one
        assert device.counted == 1
        assert device.reports("histogram")[-1]["answers"] is False
        device.hear(Reject(code="restored", reason="an aggregator that wants to see it anew"))
        assert told(device.said(device.effects))[-1] == first
        assert store.releases.spent() == (1, 0.5)
        store.close()


def test_other_samples_are_another_release_and_the_sum_is_told() -> None:
    noisy = Sharing("labels", 0.5)
    device = Sharer(noisy, seed=1)
    first = told(device.meet())[-1]
    after = Sharer(noisy, device.store, seed=2, y=np.array([1, 1, 2, 2]))
    before, new = told(after.meet())
    assert before == first
    assert new != first
    assert after.reports("histogram")[-1]["epsilon_spent"] == 1.0
    # And back: what was told of the first ones is what is told of them.
    again = Sharer(noisy, device.store, seed=3)
    assert told(again.meet())[-1] == first
    assert device.store.releases.spent() == (2, 1.0)


def test_without_noise_each_question_has_its_answer() -> None:
    device = Sharer(Sharing("labels+features"))
    device.meet()
    assert told(device.hear_round(OTHER, 2)) == [exact(OTHER, [1, 0, 3, 1, 3])]
    assert device.store.releases.spent() == (0, 0.0)


# -- taking back --------------------------------------------------------------------------


def test_an_owner_who_stops_sharing_takes_back_what_was_told() -> None:
    device = Sharer(Sharing("labels"))
    device.meet()
    after = Sharer(Sharing(), device.store)
    assert told(after.meet()) == [None]
    assert after.counted == 0


def test_an_owner_who_shares_less_takes_back_and_tells_that() -> None:
    device = Sharer(Sharing("labels+features"))
    device.meet()
    after = Sharer(Sharing("labels"), device.store)
    assert told(after.meet()) == [None, exact(ASKED.labels, [1, 0, 3])]


@pytest.mark.parametrize("wrong", [{"level": "all"}, {"epsilon": 0.0}, {"epsilon": float("nan")}])
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Sharing(**wrong)
