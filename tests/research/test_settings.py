"""What a sweep comes to: cells, what is left out of them, and what is refused."""

from __future__ import annotations

import pytest

from kellet.sdk.algorithms import FedAvg, FedDyn, FedProx, Scaffold
from kellet.sdk.errors import UsageError
from kellet.server.algorithms import FedAdam
from kellet.server.commands.sweep_options import SweepOptions
from kellet.server.research import Partition, cells
from kellet.server.research.settings import cell_of, seeds_of


def test_the_cross_product_for_one_seed_after_the_other():
    axes = {"alpha": ["0.1", "1"], "algorithm": ["fedavg", "scaffold"]}
    found = cells({"partition": "dirichlet", "clients": 4, "local_lr": 0.1}, axes, [5, 7])
    assert [cell.key for cell in found] == [
        f"alpha={alpha} algorithm={name} seed={seed}"
        for seed in (5, 7)
        for alpha in ("0.1", "1")
        for name in ("fedavg", "scaffold")
    ]
    first, last = found[0], found[-1]
    assert first.algorithm == FedAvg(local_lr=0.1)
    assert last.algorithm == Scaffold(local_lr=0.1)
    assert last.partition == Partition(kind="dirichlet", amount=1.0, clients=4)
    assert last.settings == {
        "algorithm": "scaffold",
        "partition": "dirichlet",
        "alpha": 1.0,
        "seed": 7,
    }


def test_what_an_algorithm_does_not_have_is_left_out_and_its_doubles_are_one():
    axes = {"algorithm": ["fedavg", "fedprox"], "mu": ["0.1", "1"], "implicit": ["true"]}
    found = cells({}, axes, [0])
    assert [cell.key for cell in found] == [
        "algorithm=fedavg seed=0",
        "algorithm=fedprox mu=0.1 implicit=true seed=0",
        "algorithm=fedprox mu=1 implicit=true seed=0",
    ]
    assert found[1].algorithm == FedProx(mu=0.1, implicit=True)
    assert "mu" not in found[0].settings
    # The same of a partition, a codec, and a server optimizer.
    axes = {"partition": ["by-label:2", "natural"], "clients": ["3", "6"]}
    assert len(cells({}, axes, [0])) == 3
    axes = {"uplink": ["q8", "topk"], "share": ["0.1", "0.2"]}
    assert [cell.options for cell in cells({"algorithm": "fedavg"}, axes, [0])] == [
        {"uplink": "q8"},
        {"uplink": "topk", "share": 0.1},
        {"uplink": "topk", "share": 0.2},
    ]
    # A share stands with its codec, or is a setting of its own.
    axes = {"uplink": ["q8", "topk:0.1", "topk:0.2"]}
    shared = cells({"algorithm": "fedavg"}, axes, [0])
    assert [cell.options for cell in shared] == [
        {"uplink": "q8"},
        {"uplink": "topk", "share": 0.1},
        {"uplink": "topk", "share": 0.2},
    ]
    assert shared[1].key == "uplink=topk:0.1 seed=0"
    (both,) = cells({"uplink": "topk:0.1", "delta_c": "topk:0.1"}, {}, [0])
    assert both.algorithm == Scaffold(delta_c="topk")
    assert both.options["share"] == 0.1
    axes = {"server_optimizer": ["none", "adam"], "tau": ["0.1", "0.2"], "server_lr": ["0.5"]}
    plain, *adams = cells({"algorithm": "fedavg"}, axes, [0])
    assert (plain.algorithm.server_lr, plain.optimizer) == (0.5, None)
    assert [cell.optimizer for cell in adams] == [
        FedAdam(tau=0.1, server_lr=0.5),
        FedAdam(tau=0.2, server_lr=0.5),
    ]
    assert {cell.algorithm.server_lr for cell in adams} == {1.0}


def test_a_name_that_two_have_is_said_in_full():
    axes = {"algorithm": ["fedavg", "feddyn"], "alpha": ["0.5"]}
    with pytest.raises(UsageError, match=r"write partition\.alpha or algorithm\.alpha"):
        cells({"partition": "dirichlet", "clients": 2}, axes, [0])
    axes = {"algorithm": ["fedavg", "feddyn"], "algorithm.alpha": ["0.5", "0.25"]}
    plain, *found = cells({"partition": "dirichlet:3", "clients": 2}, axes, [0])
    assert [cell.algorithm for cell in found] == [FedDyn(alpha=0.5), FedDyn(alpha=0.25)]
    assert plain.key == "algorithm=fedavg seed=0"
    assert {cell.partition for cell in found} == {
        Partition(kind="dirichlet", amount=3.0, clients=2)
    }
    # Without a partition there is one alpha alone.
    assert (
        cells({"algorithm": "feddyn"}, {"alpha": ["0.5"]}, [0])[0].algorithm == found[0].algorithm
    )


@pytest.mark.parametrize(
    ("base", "axes", "words"),
    [
        ({}, {"mv": ["1"]}, "no setting mv=1 here: scaffold has none"),
        ({"algorithm": "fedavg"}, {"mu": ["1"]}, "choose from algorithm, batch_size, clients"),
        ({"mu": 1.0}, {"algorithm": ["fedavg", "scaffold"]}, "neither fedavg nor scaffold has it"),
        ({}, {"algorithm": ["fedavg", "fedpox"]}, "algorithm = fedpox"),
        ({}, {"algorithm": ["fedprox"], "mu": ["x"]}, "mu = x: it must be a number"),
        ({}, {"option": ["III"]}, "option = III: it must be I or II"),
        ({}, {"uplink": ["topk:2"]}, "uplink = 'topk:2'.*say it as in topk:0.05"),
        ({}, {"delta_c": ["q4"]}, "must be derived, f32, q8 or topk:SHARE"),
        ({"uplink": "topk:0.1"}, {"delta_c": ["topk:0.2"]}, "all vectors have one"),
        ({}, {"cohort": ["few"]}, "cohort = few: it must be a whole number or all"),
        ({"algorithm": "fedprox"}, {"mu": ["1", "99"]}, r"local_lr \* mu = 4.95 \(mu=99\)"),
        ({"partition": "dirichlet"}, {}, "it wants its alpha"),
        ({"partition": "dirichlet:0.5"}, {"alpha": ["1"]}, "partition.alpha is given as well"),
        ({"partition": "natural:2"}, {}, "it has no number"),
        ({"partition": "by-label:1.5"}, {}, "labels are counted"),
        ({"partition": "sorted"}, {}, "similarity:PERCENT"),
        ({"partition": "dirichlet:x"}, {}, "'x' is not a number"),
        ({"partition": "natural"}, {"least": ["3"]}, "nor the partition natural has it"),
    ],
)
def test_what_is_refused(base, axes, words):
    with pytest.raises(UsageError, match=words):
        cells(base, axes, [0])


def test_one_run_of_values_that_are_there():
    cell = cell_of(FedAvg(), None, {"uplink": "topk", "cohort": "all"}, 3)
    assert (cell.key, cell.options) == ("seed=3", {"uplink": "topk", "share": 0.01})
    with pytest.raises(UsageError, match="no setting share"):
        cell_of(FedAvg(), None, {"share": 0.1}, 3)


def test_words_of_a_sweep():
    sweep = SweepOptions(sweep=["alpha=.1, 1", "local-lr=.5", "seeds=3"])
    assert sweep.axes(9) == ({"alpha": [".1", "1"], "local_lr": [".5"]}, [0, 1, 2])
    assert SweepOptions(sweep=["seeds=4,2"]).axes(9) == ({}, [4, 2])
    assert SweepOptions(sweep=["seed=4"]).axes(9) == ({}, [4])
    assert SweepOptions(sweep=["mu=1"]).axes(9) == ({"mu": ["1"]}, [9])
    for words, said in (
        (["mu"], "it must name a setting and its values"),
        (["mu=1,"], "it must name a setting and its values"),
        (["mu=1", "mu=2"], "the setting is there twice"),
        (["mu=1,1"], "a value is there twice"),
        (["seed=1", "seeds=1"], "they are one"),
        (["seeds=x"], "whole numbers"),
        (["seeds=1,1"], "a value is there twice"),
        (["seeds=0"], "from 0 on"),
    ):
        with pytest.raises(UsageError, match=said):
            SweepOptions(sweep=words).axes(0)
    assert seeds_of([2]) == [0, 1]
