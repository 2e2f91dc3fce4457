"""Who is killed when: by the seed, within bounds, and everyone comes back."""

from __future__ import annotations

import pytest

from kellet.server.demo.chaos import Chaos

DEVICES = [f"device-{i}" for i in range(1, 9)]


def played(seed: int, rounds: int = 40, most_down: int = 2) -> list[tuple[float, str, str]]:
    """(when, what, who) over rounds of one second, looked at every 10 ms."""
    chaos = Chaos(DEVICES, seed, most_down=most_down)
    deeds = []
    for number in range(1, rounds + 1):
        chaos.round_opened(number, float(number))
        for tick in range(100):
            now = number + tick / 100
            deeds += [(now, "kill", device) for device in chaos.kills(now)]
            deeds += [(now, "return", device) for device in chaos.returns(now)]
    deeds += [(now, "return", device) for device in chaos.calm()]
    return deeds


@pytest.mark.parametrize("seed", range(5))
def test_nobody_is_killed_twice_without_coming_back_and_few_are_down_at_once(seed: int) -> None:
    down: set[str] = set()
    deeds = played(seed)
    for _, what, device in deeds:
        if what == "kill":
            assert device not in down
            down.add(device)
            assert len(down) <= 2
        else:
            down.remove(device)
    assert not down
    kills = [deed for deed in deeds if deed[1] == "kill"]
    assert 10 <= len(kills) <= 40
    assert len({device for _, _, device in kills}) >= 5


def test_the_seed_decides() -> None:
    assert played(1) == played(1)
    assert played(1) != played(2)


@pytest.mark.parametrize("seed", range(20))
def test_the_first_round_is_spared_and_in_the_second_somebody_is_killed(seed: int) -> None:
    first = next(when for when, what, _ in played(seed, rounds=4) if what == "kill")
    assert 2.0 <= first < 4.0


def test_it_says_when_it_wants_to_be_asked_again() -> None:
    chaos = Chaos(["a"], 0, most_down=1)
    assert chaos.wake == float("inf")
    chaos.round_opened(2, 10.0)
    kill_at = chaos.wake
    assert 10.0 <= kill_at <= 10.5
    assert chaos.kills(kill_at - 1e-6) == []
    assert chaos.kills(kill_at) == ["a"]
    assert chaos.returns(chaos.wake) == ["a"]
    assert chaos.wake == float("inf")
