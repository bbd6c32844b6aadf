"""Measures the strategies of one model in this process; see `run.py`.

    python worker.py BACKEND MODEL OUT.jsonl [--stock] [--seconds 180]

One JSON line a strategy. Memory and arithmetic do not depend on the clock.
Times are ratios: a plain step and a step of the strategy alternate, and the
median of the ratios counts. Stock Keras is measured by the same program.
"""

import argparse
import json
import os
import re
import statistics
import time
import warnings

parser = argparse.ArgumentParser()
parser.add_argument("backend")
parser.add_argument("model")
parser.add_argument("out")
parser.add_argument("--stock", action="store_true")
parser.add_argument("--seconds", type=float, default=180)
OPTIONS = parser.parse_args()
os.environ["KERAS_BACKEND"] = OPTIONS.backend

import measure  # noqa: E402

measure.prepare()

import numpy as np  # noqa: E402
import strategies  # noqa: E402

import keras  # noqa: E402

STEPS = 1
PAIRS = 7
TOLERANCE = 1e-3
SHARE = 1e-3  # of the change of the weights


class Trained:
    """A model under a strategy, after its first steps."""

    def __init__(self, strategy):
        keras.utils.set_random_seed(0)
        self.model, case = strategies.make(
            OPTIONS.model, strategy, OPTIONS.backend
        )
        self.x, self.y = case.x, case.y
        self.model.compile(
            optimizer=keras.optimizers.SGD(1e-4),
            loss=case.loss,
            jit_compile=OPTIONS.backend == "jax",
        )
        if not self.model.built:
            self.model(self.x)
        self.variables = case.model.variables
        self.start = self.values()
        start = time.process_time()
        losses = [self.step(0)]
        self.first = time.process_time() - start
        losses += [self.step(k) for k in range(1, STEPS)]
        self.losses = np.array(losses)
        self.after = self.values()
        self.noise = 0.0
        self.usage = measure.of_step(self.model, self.x, self.y)

    def values(self):
        arrays = [keras.ops.convert_to_numpy(v) for v in self.variables]
        return [np.array(a, dtype="float64") for a in arrays]

    def step(self, seed):
        keras.utils.set_random_seed(seed)
        return float(self.model.train_on_batch(self.x, self.y))

    def seconds(self):
        start = time.perf_counter()
        self.step(0)
        return time.perf_counter() - start

    def train(self):
        return np.array([self.step(k) for k in range(STEPS)])

    def rounding(self):
        """How far training strays if all weights change in the last digits.

        A deep network with batch normalization, at its first weights,
        amplifies rounding until gradients differ by some percent.
        """
        generator = np.random.default_rng(3)
        start = []
        for v, value in zip(self.variables, self.start):
            if v.trainable:
                noise = 1e-6 * generator.standard_normal(value.shape)
                value = (value * (1 + noise)).astype(v.dtype)
            v.assign(value.astype(v.dtype))
            start.append(value.astype("float64"))
        self.train()
        return self.gap(start, self.values())

    def gap(self, start, after):
        """Share of the change of the weights in which another one differs."""
        gap = total = 0
        for v, a, b, c, d in zip(
            self.variables, self.start, self.after, start, after
        ):
            if v.trainable:
                gap += np.sum(((b - a) - (d - c)) ** 2)
                total += np.sum((b - a) ** 2)
        return float(np.sqrt(gap / total))

    def strays(self, base):
        return base.gap(self.start, self.after)

    def equals(self, base):
        """Whether losses, state, and what training changed are the same."""
        state = [
            (a, b)
            for v, a, b in zip(self.variables, self.after, base.after)
            if not v.trainable
        ]
        return self.strays(base) <= max(SHARE, 2 * base.noise) and all(
            np.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE)
            for a, b in [(self.losses, base.losses), *state]
        )


def row(trained, base):
    usage = trained.usage
    result = {
        "peak": usage.peak,
        "held": usage.held,
        "flops": usage.flops,
        "equal": trained.equals(base),
        "gap": trained.strays(base),
        "rounding": base.noise,
        "compile": trained.first / base.first,
        "time": 1.0,
    }
    if trained is not base:
        pairs = [(trained.seconds(), base.seconds()) for _ in range(PAIRS)]
        result["time"] = statistics.median(a / b for a, b in pairs)
    return result


def failure(error):
    """The error in one line, the innermost one if one was wrapped."""
    text = re.sub(r"\x1b\[\d+m", "", str(error))
    text = text.rpartition("Exception encountered:")[2] or text
    text = re.sub(r"Exception encountered when calling \S+", "", text)
    text = " ".join(text.split("Arguments received")[0].split()).strip("' ")
    return {"error": f"{type(error).__name__}: {text[:200]}"}


def write(strategy, result):
    head = {
        "backend": OPTIONS.backend,
        "model": OPTIONS.model,
        "strategy": strategy,
        "keras": keras.__version__,
        "engine": engine_version(),
    }
    with open(OPTIONS.out, "a") as f:
        f.write(json.dumps(head | result) + "\n")


def engine_version():
    import importlib

    return importlib.import_module(OPTIONS.backend).__version__


def main():
    warnings.filterwarnings("ignore")
    if OPTIONS.backend == "torch":
        import torch

        torch.set_num_threads(1)
    end = time.monotonic() + OPTIONS.seconds
    base = None
    for strategy in strategies.names(OPTIONS.backend, OPTIONS.stock):
        if base is not None and time.monotonic() > end:
            write(strategy, {"error": "not run: the time was up"})
            continue
        try:
            trained = Trained(strategy)
            if base is None:
                base = trained
                base.noise = base.rounding()
            result = row(trained, base)
        except Exception as e:
            result = failure(e)
            if base is None:
                write(strategy, result)
                return
        write(strategy, result)


main()
