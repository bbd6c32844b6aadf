"""Measures the strategies of one model in this process; see `run.py`.

    python worker.py BACKEND MODEL OUT.json [--stock]

Memory and arithmetic do not depend on the clock. Times are ratios: in each
round every strategy makes a step, and the median over the rounds of the ratio
to the plain step counts. Stock Keras is measured by the same program.
"""

import argparse
import os
import statistics
import time
import warnings

parser = argparse.ArgumentParser()
parser.add_argument("backend")
parser.add_argument("model", help="such as gpt, gpt-eager, gpt-xla")
parser.add_argument("out")
parser.add_argument("--stock", action="store_true")
OPTIONS = parser.parse_args()
os.environ["KERAS_BACKEND"] = OPTIONS.backend
MODEL, _, MODE = OPTIONS.model.partition("-")

import measure  # noqa: E402

measure.prepare()
if hasattr(os, "sched_setaffinity"):  # one thread, or times depend on others
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import equal  # noqa: E402
import models  # noqa: E402
import results  # noqa: E402
import strategies  # noqa: E402
from trained import Trained  # noqa: E402

HAND = "by hand"
REPEATS = 3
ROUNDS = (3, 25)
STEADY = 0.01  # error of a ratio that is good enough
SECONDS = 5  # of the processor for rounds, beyond the least number


def make(strategy):
    model, case = strategies.make(MODEL, strategy, OPTIONS.backend)
    return Trained(model, case, MODE)


def warm_up():
    """Lets the engine set itself up, or the first model would pay for it."""
    case = models.chain(depth=4, blocks=2)
    Trained(case.model, case, MODE).usage()


def row(trained, base, noisy):
    usage = trained.usage()
    return {
        "peak": usage.peak,
        "held": usage.held,
        "flops": usage.flops,
        "fault": equal.fault(
            base.variables, base.course, trained.course, noisy
        ),
        "setup": trained.setup,
    }


def rounds(group):
    """Seconds of a step of each strategy, by round; the first is the base."""
    taken, base = [], next(iter(group))
    end = time.process_time() + SECONDS
    while len(taken) < ROUNDS[1]:
        order = list(group)[:: -1 if len(taken) % 2 else 1]
        taken.append({name: group[name].seconds() for name in order})
        if len(taken) < ROUNDS[0]:
            continue
        if time.process_time() > end or all(
            ratio(taken, name, base)[1] < STEADY for name in group
        ):
            break
    return taken


def ratio(taken, name, base):
    """The median of the ratio to another strategy, and its error."""
    values = [seconds[name] / seconds[base] for seconds in taken]
    low, middle, high = statistics.quantiles(values, n=4)
    # For values of a normal distribution: from quartiles to the standard
    # deviation, from this to the error of the median.
    error = 1.2533 * (high - low) / 1.349 / len(values) ** 0.5
    return middle, error


def times(group):
    found = {}
    taken = rounds(group)
    for name in group:
        middle, error = ratio(taken, name, strategies.PLAIN)
        found[name] = {
            "time": middle,
            "error of time": error,
            "seconds": statistics.median(s[name] for s in taken),
        }
    pair = [name for name in (HAND, strategies.BLOCK) if name in group]
    if len(pair) == 2:  # once more, each step beside the other
        taken = rounds({name: group[name] for name in pair})
        middle, error = ratio(taken, strategies.BLOCK, HAND)
        found[strategies.BLOCK]["time to hand"] = middle
        found[strategies.BLOCK]["error to hand"] = error
    return found


def measure_all(output):
    """Adds a row for each strategy; returns those that could be trained."""
    names = strategies.names(MODEL, MODE, OPTIONS.backend, OPTIONS.stock)
    if OPTIONS.stock and not works(strategies.STOCK, output):
        return {}
    group, base = {}, None
    for name in names:
        print(name, flush=True)
        try:
            trained = make(name)
            if base is None:
                base, noisy = trained, trained.nearby()
            output.add(name, row(trained, base, noisy))
            group[name] = trained
        except Exception as e:
            output.add(name, results.failure(e))
            if base is None:
                return {}
    return group


def works(name, output):
    """Stock Keras fails on most models: then it needs no plain one either."""
    try:
        make(name)
    except Exception as e:
        output.add(name, results.failure(e))
        return False
    return True


def main():
    warnings.filterwarnings("ignore")
    if OPTIONS.backend == "torch":
        import torch

        torch.set_num_threads(1)
    output = results.Output(OPTIONS)
    warm_up()
    group = measure_all(output)
    if MODEL == "chain":  # tracing is all that it is for
        for name in list(group) * (REPEATS - 1):
            found = output.rows[name]
            found["setup"] = min(found["setup"], make(name).setup)
    print("rounds", flush=True)
    for name, found in (times(group) if group else {}).items():
        output.rows[name] |= found
    output.done()


main()
