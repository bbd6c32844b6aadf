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
import results  # noqa: E402
import strategies  # noqa: E402
from trained import Trained  # noqa: E402

ROUNDS = (5, 25)
STEADY = 0.01  # error of a ratio that is good enough
SECONDS = 25  # of the processor for rounds, beyond the least number


def make(strategy):
    model, case = strategies.make(MODEL, strategy, OPTIONS.backend)
    return Trained(model, case, MODE)


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
    """Seconds of a step of each strategy, by round."""
    taken = []
    end = time.process_time() + SECONDS
    while len(taken) < ROUNDS[1]:
        order = list(group)[:: -1 if len(taken) % 2 else 1]
        taken.append({name: group[name].seconds() for name in order})
        if len(taken) < ROUNDS[0]:
            continue
        if time.process_time() > end or all(
            ratio(taken, name)[1] < STEADY for name in group
        ):
            break
    return taken


def ratio(taken, name, base=strategies.PLAIN):
    """The median of the ratio to another strategy, and its error."""
    values = [seconds[name] / seconds[base] for seconds in taken]
    low, middle, high = statistics.quantiles(values, n=4)
    # For values of a normal distribution: from quartiles to the standard
    # deviation, from this to the error of the median.
    error = 1.2533 * (high - low) / 1.349 / len(values) ** 0.5
    return middle, error


def times(taken):
    found = {}
    for name in taken[0]:
        middle, error = ratio(taken, name)
        seconds = statistics.median(s[name] for s in taken)
        found[name] = {
            "time": middle,
            "error of time": error,
            "seconds": seconds,
        }
    by_hand = "by hand"
    if by_hand in taken[0] and strategies.BLOCK in taken[0]:
        middle, error = ratio(taken, strategies.BLOCK, by_hand)
        found[strategies.BLOCK] |= {
            "time to hand": middle,
            "error to hand": error,
        }
    return found


def main():
    warnings.filterwarnings("ignore")
    if OPTIONS.backend == "torch":
        import torch

        torch.set_num_threads(1)
    output = results.Output(OPTIONS)
    group, noisy = {}, None
    for name in strategies.names(MODEL, MODE, OPTIONS.backend, OPTIONS.stock):
        print(name, flush=True)
        try:
            if name == strategies.PLAIN:
                make(name)  # fills caches of the engine
            trained = make(name)
            if noisy is None:
                base, noisy = trained, trained.nearby()
            output.add(name, row(trained, base, noisy))
            group[name] = trained
        except Exception as e:
            output.add(name, results.failure(e))
            if noisy is None:
                return output.done()
    print("rounds", flush=True)
    for name, found in times(rounds(group)).items():
        output.rows[name] |= found
    return output.done()


main()
