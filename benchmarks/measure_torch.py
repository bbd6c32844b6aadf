"""Memory and arithmetic of a training step, from torch's CPU allocator."""

import gc
import os

from measure import Usage
from measure import thinned

BACKWARD = "autograd::engine::evaluate_function"


def prepare():
    """Keeps the profiler quiet, and threads from spinning on a busy machine."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "9")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def of_step(model, x, y):
    model.train_on_batch(x, y)  # optimizer state, caches of the first use
    events = allocator_events(model, x, y)
    alive, backward = timeline(events)
    held = alive[backward - 1] if backward else None
    flops = arithmetic(model, x, y)
    return Usage(max(alive), held, flops, *thinned(alive, backward))


def allocator_events(model, x, y):
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile

    model.zero_grad()  # else the step would begin by freeing old gradients
    gc.collect()
    with profile(
        activities=[ProfilerActivity.CPU], profile_memory=True
    ) as prof:
        model.train_on_batch(x, y)
    events = prof.profiler.kineto_results.events()
    return sorted(events, key=lambda e: e.start_ns())


def timeline(events):
    """List of bytes alive per event, and where the backward begins."""
    alive, backward, total = [], None, 0
    for event in events:
        if event.name() == "[memory]":
            total += event.nbytes()
            alive.append(total)
        elif backward is None and event.name().startswith(BACKWARD):
            backward = len(alive)
    return alive, backward


def arithmetic(model, x, y):
    """Operations of matrix products and convolutions, second runs too."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        model.train_on_batch(x, y)
    return counter.get_total_flops()
