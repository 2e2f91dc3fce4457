"""How well the built-in plans do when one machine holds everybody's data.

    python examples/export/pooled.py wisdm --epochs 40 --rate 0.1
    python examples/export/pooled.py har --epochs 20 --rate 0.1

Plain SGD over the 30 users who train, tested on the six whom the seed keeps
aside: the mark that federated training of the same plan is held against.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from kellet.kernels import sgd_step
from kellet.sdk.plan import Plan
from kellet.sdk.tasks import split, task


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=("wisdm", "har"))
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    whole = task(options.task)
    shares = split(whole, 1, options.seed)
    plan = Plan.open(whole.plan_name)
    x, y = plan.check_data(*whole.load(shares.devices["device-1"]))
    test = whole.load(shares.test_users)
    session, evaluator = plan.session(), plan.evaluator()
    order = np.random.default_rng(options.seed)
    began, steps = time.perf_counter(), 0
    for epoch in range(1, options.epochs + 1):
        shuffled = order.permutation(len(x))
        for start in range(0, len(x), options.batch):
            rows = shuffled[start : start + options.batch]
            session.step(x[rows], y[rows])
            sgd_step(session.params[: plan.n_train], session.grads, options.rate)
            steps += 1
        if epoch % 5 == 0 or epoch == options.epochs:
            milliseconds = 1e3 * (time.perf_counter() - began) / steps
            found = evaluator.evaluate(session.params, *test)
            print(
                f"epoch {epoch:3}  accuracy {found.accuracy:.4f}  loss {found.loss:.4f}  "
                f"{milliseconds:.3f} ms a step",
                flush=True,
            )


if __name__ == "__main__":
    main()
