"""What flwr's workers run: one client's steps. A module of its own, so that they import it."""

from __future__ import annotations

from functools import cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from job import Job, Problem
from nets import NETS
from torch.nn import functional as F

app = ClientApp()


@cache
def _job(path: str) -> Job:
    return Job.read(path)


@cache
def _problem(path: str) -> Problem:
    return Problem(path)


@cache
def _net(name: str) -> torch.nn.Module:
    return NETS[name]()


@app.train()
def train(message: Message, context: Context) -> Message:
    job = _job(str(message.content["config"]["job"]))
    torch.set_num_threads(job.threads)
    number = int(context.node_config["partition-id"])
    x, y = (torch.from_numpy(part) for part in _problem(job.data).client(number))
    net = _net(job.net)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(net.parameters(), lr=job.lr)
    random = torch.Generator().manual_seed(
        job.seed + 1000 * int(message.content["config"]["server-round"]) + number
    )
    batch = job.batch or len(y)
    order = torch.arange(len(y))
    at = len(y)
    for _ in range(job.steps):
        if at >= len(y):
            at = 0
            if job.batch:
                order = torch.randperm(len(y), generator=random)
        some = order[at : at + batch]
        at += batch
        optimizer.zero_grad()
        F.cross_entropy(net(x[some]), y[some]).backward()
        optimizer.step()
    content = {
        "arrays": ArrayRecord(net.state_dict()),
        "metrics": MetricRecord({"num-examples": 1}),  # a uniform mean
    }
    return Message(content=RecordDict(content), reply_to=message)
