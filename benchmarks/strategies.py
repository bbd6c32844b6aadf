"""Ways to train one model in less memory, to be compared."""

import by_hand
import models

import keras


def plain(case):
    return case.model


def full(case):
    case.model.remat = True
    return case.model


def policy(**arguments):
    """A strategy; stock Keras has no policies, so none is made here yet."""

    def apply(case):
        case.model.remat = keras.RematPolicy(**arguments)
        return case.model

    return apply


PLAIN, BLOCK, STOCK = "plain", "region per block", "stock full"
OURS = {
    "full": full,
    "budget 0.5": policy(memory_budget=0.5),
    "budget 0.25": policy(memory_budget=0.25),
    "keep matmuls": policy(keep="matmuls"),
}


def names(model, mode, backend, stock=False):
    """The strategies to measure, the plain one first."""
    if stock:
        return [PLAIN, STOCK]
    hand = list(by_hand.WAYS[backend])
    if model == "chain":
        return [PLAIN, BLOCK, *hand]
    if mode:
        return [PLAIN, "full", BLOCK, *hand]
    first, *rest = OURS
    return [PLAIN, first, BLOCK, *hand, *rest]


def make(name, strategy, backend):
    """Builds a model for a strategy.

    Returns:
        The model to train, and the case that it comes from.
    """
    if strategy == STOCK:  # takes effect on layers that are created in it
        case = models.build(name, keras.RematScope("full"))
        return case.model, case
    case = models.build(name)
    ways = {PLAIN: plain, **OURS, BLOCK: by_hand.strategy(by_hand.region)}
    ways |= by_hand.strategies(backend)
    return ways[strategy](case), case
