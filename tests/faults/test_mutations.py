"""Changed messages count nothing twice, open no gap, and raise nothing."""

from __future__ import annotations

import pytest
from faults.mutations import KINDS, Result, run
from machines.alone import Alone

from kellet.sdk.protocol.messages import Hello, Reject

SHARE = 400
FULL = 100_000


def together(results: list[Result]) -> Result:
    everything = Result()
    for result in results:
        everything.delivered.update(result.delivered)
        everything.counted += result.counted
        everything.rounds += result.rounds
    return everything


@pytest.mark.parametrize("seed", range(8))
def test_changed_messages_do_no_harm(seed: int) -> None:
    result = run(seed, SHARE)
    assert not result.broken, f"seed {seed}: {result.broken}"
    assert set(result.delivered) == set(KINDS)
    assert result.delivered.total() >= SHARE
    assert result.counted > 0  # it was a fleet at work


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_hundred_thousand_changed_messages() -> None:
    results: list[Result] = []
    while together(results).delivered.total() < FULL:
        results.append(run(len(results), 2000))
        assert not results[-1].broken, f"seed {len(results) - 1}: {results[-1].broken}"
    assert together(results).counted > 1000


def test_a_forged_receipt_is_found_out_at_the_next_hello() -> None:
    """It is believed; and then the ledger's audit does not fit the device's any more."""
    device = Alone()
    offer = device.offer()
    before = device.store.audit()
    device.receipt(offer, counted=True)  # though the ledger counted nothing
    assert device.store.audit() != before
    (hello,) = device.connect()
    assert isinstance(hello, Hello)
    assert hello.audit != before  # what the aggregator holds against its ledger
    nonce = device.store.identity.nonce
    device.hear(Reject(code="restored", reason="", boot=hello.boot, nonce=hello.nonce))
    assert device.store.identity.nonce != nonce
    assert device.store.audit() is None
