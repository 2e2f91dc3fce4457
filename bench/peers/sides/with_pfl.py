"""pfl's side. Users' samples are repeated, shuffled, until there are enough for all steps.

Its steps end with a user's samples, and it neither shuffles nor gathers rows: slices of one array
are its batches, made once. That is its fastest way, and it is left to it.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from job import Clock, Job, Problem, done
from nets import NETS, from_arrays, to_arrays
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch.nn import functional as F


class Net(torch.nn.Module):
    """A model as pfl wants it: with its loss."""

    def __init__(self, net: torch.nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: torch.Tensor, y: torch.Tensor, is_eval: bool = False) -> torch.Tensor:
        return F.cross_entropy(self.net(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict:
        return {}


class Watch(TrainingProcessCallback):
    """Says when a round has ended."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self._clock.round_ended()
        return False, Metrics()


def main(path: str) -> None:
    job, clock = Job.read(path), Clock()
    torch.set_num_threads(job.threads)
    np.random.seed(job.seed)
    problem = Problem(job.data)
    users = {number: _dataset(problem, number, job) for number in range(len(problem))}
    sampler = get_user_sampler("minimize_reuse" if job.batch == 0 else "random", list(users))
    data = FederatedDataset(users.__getitem__, sampler)
    net = Net(NETS[job.net]())
    net.net.load_state_dict(from_arrays(problem.initial))
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=job.rounds,
            evaluation_frequency=job.rounds + 1,
            train_cohort_size=job.cohort,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data),
        model,
        NNTrainHyperParams(
            local_num_epochs=job.steps if job.batch == 0 else None,
            local_num_steps=job.steps if job.batch else None,
            local_learning_rate=job.lr,
            local_batch_size=job.batch or None,
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Watch(clock)],
    )
    done(job, clock, to_arrays(net.net.state_dict()))


def _dataset(problem: Problem, number: int, job: Job) -> PyTorchTensorDataset:
    x, y = problem.client(number)
    if job.batch:
        rng = np.random.default_rng([job.seed, number])
        wanted = job.steps * job.batch
        order = np.concatenate([rng.permutation(len(y)) for _ in range(wanted // len(y) + 1)])
        x, y = x[order[:wanted]], y[order[:wanted]]
    return PyTorchTensorDataset((torch.from_numpy(x), torch.from_numpy(y)))


if __name__ == "__main__":
    main(sys.argv[1])
