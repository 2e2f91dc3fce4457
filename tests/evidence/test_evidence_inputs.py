"""The data that the tables are made of: what is computed from what is stored."""

import numpy as np
import pytest

from bench.evidence.detection import FRAUD_FEATURES, detection, features
from bench.evidence.roles import ALPHABET, encoded, roles, windows
from bench.evidence.synthetic import synthetic
from kellet.sdk.errors import UsageError


def test_features_of_a_transaction_by_hand():
    """40.77 at a weekend's night; of the customer's 2 in a day 58.01, of the terminal's 3 one."""
    columns = {"cents": 4077, "flags": 3}
    for days, (number, cents, seen, frauds) in {
        1: (2, 5801, 0, 0),
        7: (3, 9000, 3, 1),
        30: (4, 9002, 8, 2),
    }.items():
        columns |= {
            f"customer_{days}": number,
            f"customer_cents_{days}": cents,
            f"terminal_{days}": seen,
            f"terminal_frauds_{days}": frauds,
        }
    found = features({name: np.array([value]) for name, value in columns.items()})
    by_hand = [40.77, 1, 1, 2, 29.005, 3, 30, 4, 22.505, 0, 0, 3, 1 / 3, 8, 0.25]
    assert found.dtype == np.float32
    assert found.tolist() == [np.array(by_hand, np.float32).tolist()]
    assert found.shape == (1, len(FRAUD_FEATURES))


@pytest.mark.parametrize(
    ("name", "trained", "positives", "judged", "of_them"),
    [("fraud", 67240, 598, 67080, 568), ("annthyroid", 3772, 284, 3428, 250)],
)
def test_positives_are_rare(name, trained, positives, judged, of_them):
    data = detection(name)
    assert (len(data.y), int(data.y.sum())) == (trained, positives)
    assert (len(data.test[1]), int(data.test[1].sum())) == (judged, of_them)
    x = data.x.astype(float)
    assert np.abs(x.mean(axis=0)).max() < 1e-6
    assert x.std(axis=0) == pytest.approx(1, abs=1e-6)


def test_other_data_are_refused():
    with pytest.raises(UsageError, match="no data 'wisdm'"):
        detection("wisdm")


def test_synthetic_data_are_those_of_the_paper():
    """The digest holds every bit; these are the sizes that its authors' program prints."""
    trained, judged = synthetic()
    sizes = [len(trained[name][1]) + len(judged[name][1]) for name in trained]
    assert sizes[:6] == [1909, 171, 436, 4876, 2337, 57]
    assert (len(sizes), sum(sizes), sum(len(y) for _, y in judged.values())) == (30, 22349, 2248)


def test_windows_do_not_reach_past_their_text():
    x, y = windows(np.arange(20), 3)
    assert x[:, 0].tolist() == [0, 3]
    assert x[:, -1].tolist() == [15, 18]
    assert y.tolist() == [16, 19]


def test_a_role_says_what_it_says():
    trained, judged = roles()
    assert len(trained) == 100
    x, y = trained["17-Ham"]
    text = "".join(ALPHABET[i] for i in [*x[0], y[0]])
    assert text == "A little more tha"
    assert encoded("Z a").tolist() == [37, 1, 38]
    seen = len(x) + 5 / 3 * len(judged["17-Ham"][1])
    assert seen == pytest.approx(56107 / 3, rel=0.01)  # a third of its characters
