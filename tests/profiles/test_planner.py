"""The planner: bytes worked by hand, what is chosen and why, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from support.toy_plans import softmax_regression

from kellet.firmware_profiles import LOG_MB, PROCESS_MB, load
from kellet.firmware_profiles.profile import _SCHEMES
from kellet.sdk import Plan, peak, planner
from kellet.sdk.algorithms import FedAvg, FedProx, Scaffold
from kellet.sdk.commands.fit import link_of
from kellet.sdk.errors import PlanError, UsageError
from kellet.sdk.peak import peak_of
from kellet.sdk.plan.schemes import SCHEMES, family
from kellet.sdk.planner import Advice, Candidate, Link, advise, misfit, predict

PI, ZERO = load("pi_4b"), load("pi_zero_2w")
ROOMY = load("x86_64")


@pytest.fixture(scope="module")
def wide() -> Plan:
    """3,000,003 trained parameters: a vector is 12 MB, a control at rest 24."""
    return softmax_regression(1_000_000, 3)


def test_profiles_know_the_schemes_of_plans() -> None:
    assert tuple(map(family, SCHEMES)) == _SCHEMES


def test_the_bytes_of_a_round_by_hand() -> None:
    """WISDM: 5,094 parameters in 4 tensors, 20,376 bytes. Parts of 256 KiB: one of each."""
    plan = Plan.open("wisdm")
    assert (plan.n_params, plan.n_update) == (5094, 5094)
    prox = predict(plan, PI, scheme="f32", algorithm="fedprox", batch=32)
    assert prox.up == 4 * 5094 + 400 + 152 + 1300
    assert prox.down == 4 * 5094 + 152 + 1300
    scaffold = predict(plan, PI, scheme="f32", algorithm="scaffold", batch=32)
    assert scaffold.up == prox.up  # delta_c is derived
    assert scaffold.down == prox.down + 4 * 5094 + 152


def test_a_quarter_of_the_bytes_in_int8_rows() -> None:
    plan = Plan.open("wisdm")
    rows = sum(t.shape[0] if len(t.shape) > 1 else 1 for t in plan.manifest.tensors)
    coded = predict(plan, PI, scheme="f32", algorithm="fedprox", batch=32, uplink="q8")
    assert coded.up == 5094 + 4 * rows + 400 + 152 + 1300


def test_seconds_on_a_link() -> None:
    """250,000 bits a second: 31,250 bytes, of which TCP and IP take four in a hundred."""
    assert Link(up=250e3, down=250e3).seconds(31_250, 62_500) == pytest.approx(3 * 1.04)
    assert Link(up=1e6, down=8e6).seconds(125_000, 1_000_000) == pytest.approx(2 * 1.04)


@pytest.mark.parametrize(
    ("text", "down", "up"),
    [
        ("250kbit", 250e3, 250e3),
        ("250", 250e3, 250e3),
        ("8mbit/1mbit", 8e6, 1e6),
        ("8Mbit/s/512kbit/s", 8e6, 512e3),
        ("1.5gbit", 1.5e9, 1.5e9),
        ("9600bit", 9600, 9600),
    ],
)
def test_links_as_people_write_them(text: str, down: float, up: float) -> None:
    assert link_of(text) == Link(down=down, up=up)


@pytest.mark.parametrize("text", ["", "fast", "-1kbit", "0", "1mbyte", "1/2/3", "1kbit/"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="write 250kbit, or 8mbit/1mbit"):
        link_of(text)


def test_samples_count_as_they_are_held() -> None:
    """A window of HAR is 9 x 128 float32 and an int64 label: 4,616 bytes."""
    plan = Plan.open("har")
    few, many = (
        predict(plan, PI, scheme="f32", algorithm="fedprox", batch=32, samples=n).peak_mb
        for n in (0, 10_000)
    )
    assert many - few == pytest.approx(46.16)


def test_the_terms_of_float32_by_hand(wide: Plan) -> None:
    """3,000,003 parameters, 12,000,012 bytes a vector, and nothing measured of activations."""
    assert wide.schemes == ("f32/1",)
    vector = 12_000_012
    peak = peak_of(
        wide,
        scheme="f32/1",
        controls=True,
        int8_shift=False,
        batch=32,
        data_bytes=7,
        sent=vector,
        received=vector,
        control=vector,
    )
    assert peak.weights == 2 * vector
    assert peak.data == 7
    assert peak.training == 4 * vector  # x, delta_y, c, the shift
    assert peak.total == peak.resting + max(peak.fetching, peak.training, peak.saving)
    narrow = peak_of(
        wide,
        scheme="f32/1",
        controls=True,
        int8_shift=True,
        batch=32,
        data_bytes=7,
        sent=vector,
        received=vector,
        control=vector,
    )
    assert peak.training - narrow.training == vector - 3_000_003


def choose(plan: Plan, profile: object = PI, **options: object) -> tuple[Advice, Candidate]:
    advice = advise(plan, profile, **options)  # type: ignore[arg-type]
    assert advice.chosen
    return advice, advice.chosen


def test_the_profile_s_wishes_where_all_fits() -> None:
    plan = Plan.open("har")
    advice, chosen = choose(plan)
    assert (chosen.scheme, chosen.algorithm, chosen.batch) == ("f32/1", "scaffold", 32)
    assert advice.control_damping == 1.0
    assert len(advice.candidates) == 2 * 3  # two algorithms, three schemes that both know
    _, low = choose(plan, load("phone_arm64_low"))
    assert (low.scheme, low.algorithm) == ("w8.row/1", "fedprox")


def test_short_rounds_on_int8_weights_are_damped() -> None:
    plan = Plan.open("har")
    advice, chosen = choose(plan, ZERO)
    assert (chosen.scheme, chosen.algorithm) == ("w8.row/1", "scaffold")
    assert advice.control_damping == 0.1
    assert any("control_damping 0.1" in reason for reason in advice.reasons)
    assert advise(plan, ZERO, local_steps=49).control_damping == 0.1
    assert advise(plan, ZERO, local_steps=50).control_damping == 1.0


def between(plan: Plan, low: str, high: str) -> float:
    """A budget in MB that ``low`` keeps to and ``high`` does not."""
    of = [predict(plan, PI, scheme="f32", algorithm=name, batch=1).peak_mb for name in (low, high)]
    assert of[0] + 2 < of[1]
    return sum(of) / 2


def test_without_room_for_two_more_vectors_it_is_fedprox(wide: Plan) -> None:
    tight = replace(PI, memory_budget_mb=int(between(wide, "fedprox", "scaffold")))
    advice, chosen = choose(wide, tight)
    assert chosen.algorithm == "fedprox"
    needs = predict(wide, tight, scheme="f32", algorithm="scaffold", batch=1)
    assert advice.reasons[0] == (
        f"fedprox, for scaffold needs {math.ceil(needs.peak_mb)} MB of memory, of "
        f"{tight.memory_budget_mb} even with f32/1 and batches of 1"
    )


def test_a_smaller_batch_before_another_algorithm() -> None:
    plan = Plan.open("har")
    large = predict(plan, PI, scheme="f32", algorithm="scaffold", batch=32).peak_mb
    small = predict(plan, PI, scheme="f32", algorithm="scaffold", batch=16).peak_mb
    assert small + 0.5 < large
    only = replace(PI, memory_budget_mb=(large + small) / 2, schemes=("f32",))  # type: ignore[arg-type]
    advice, chosen = choose(plan, only)
    assert (chosen.algorithm, chosen.batch) == ("scaffold", 16)
    assert any("batches of 16: with 32 it needs" in reason for reason in advice.reasons)


def test_what_does_not_fit_is_refused_with_the_numbers(wide: Plan) -> None:
    small = replace(PI, memory_budget_mb=100, storage_budget_mb=20)
    advice = advise(wide, small)
    assert advice.chosen is None
    error = advice.refusal(wide, small)
    assert isinstance(error, PlanError)
    least = predict(wide, small, scheme="f32", algorithm="fedprox", batch=1)
    assert least.short_of == (
        f"needs {math.ceil(least.peak_mb)} MB of memory, of 100",
        f"needs {math.ceil(least.storage_mb)} MB of storage, of 20",
    )
    for part in least.short_of:
        assert part in str(error)


def test_the_least_budgets_are_what_a_device_takes_without_a_plan() -> None:
    """A profile says whole MB: the first that the fixed terms fit into."""
    assert math.ceil(peak._PROCESS / 10**6) == PROCESS_MB
    assert math.ceil(planner._LOG / 10**6) == LOG_MB


def test_a_device_asks_the_same(wide: Plan) -> None:
    tight = replace(PI, memory_budget_mb=int(between(wide, "fedprox", "scaffold")))
    assert misfit(wide, tight, scheme="f32/1", algorithm=FedProx(), batch=1) == ""
    reason = misfit(wide, tight, scheme="f32/1", algorithm=Scaffold(), batch=1)
    assert reason.endswith(f"MB of memory, of {tight.memory_budget_mb}")
    full = misfit(wide, tight, scheme="f32/1", algorithm=FedProx(), batch=1, data_bytes=10**9)
    assert full.startswith("needs 11")


def test_no_scheme_in_common_is_said(wide: Plan) -> None:
    with pytest.raises(UsageError, match=r"has f32/1; the profile w8\.row"):
        advise(wide, replace(ZERO, schemes=("w8.row",)))
    with pytest.raises(UsageError, match="batch = 0"):
        advise(wide, PI, batch=0)


def test_each_algorithm_takes_what_it_holds(wide: Plan) -> None:
    """FedDyn has a c_i, and no c travels; Per-FedAvg holds one vector more than FedAvg."""

    def of(algorithm: FedAvg | str) -> Candidate:
        return predict(wide, ROOMY, scheme="f32", algorithm=algorithm, batch=1)

    plain, scaffold, dynamic = of("fedavg"), of("scaffold"), of("feddyn")
    assert dynamic.down == plain.down < scaffold.down
    assert dynamic.up == scaffold.up == plain.up
    assert dynamic.storage_mb == scaffold.storage_mb > plain.storage_mb
    assert plain.peak_mb <= of("perfedavg").peak_mb <= scaffold.peak_mb
    assert of(FedAvg(momentum=0.9)).peak_mb == of("perfedavg").peak_mb
    explicit = of(Scaffold(delta_c="f32"))
    assert explicit.up - scaffold.up >= 4 * wide.n_train
