"""Whether two ways to train a model give the same numbers.

Rounding alone makes them differ, and a deep network with batch normalization,
at its first weights, amplifies it until some gradients differ by percent. How
far is far is therefore measured, for each variable: by training the plain
model once more, from weights that differ in the last digits.
"""

from typing import NamedTuple

import numpy as np

DIGITS = 1e-6  # by which the weights of that other run differ
SLACK = 20  # times its distance is still equal
SHARE = 1e-4  # and so much of what training changed
ULP = 1e-7  # and so much of the values themselves


class Course(NamedTuple):
    """What training did.

    Attributes:
        losses: Array of the losses of the steps.
        start: List of arrays, the variables before.
        end: List of arrays, the variables after.
    """

    losses: np.ndarray
    start: list
    end: list


def nearby(variables, start):
    """Values that differ from `start` in the last digits, for weights."""
    generator = np.random.default_rng(3)

    def near(v, value):
        if not v.trainable:
            return value
        digits = generator.standard_normal(value.shape)
        return (value * (1 + DIGITS * digits)).astype(v.dtype).astype(float)

    return [near(v, value) for v, value in zip(variables, start)]


def fault(variables, plain, other, noisy):
    """What differs more than rounding explains, in a few words.

    Args:
        variables: The variables of the model.
        plain: The `Course` of the plain model.
        other: The `Course` that is judged.
        noisy: That of the plain model from `nearby` weights.

    Returns:
        A string, empty if both are equal.
    """
    if not np.all(np.isfinite(plain.losses)):
        return "the plain loss is not finite"
    slack = SLACK * largest(plain.losses - noisy.losses)
    slack += SHARE * largest(plain.losses)
    found = []
    if not largest(other.losses - plain.losses) <= slack:
        found.append("loss")
    wrong = [
        v for k, v in enumerate(variables) if differs(v, k, plain, other, noisy)
    ]
    for kind, trains in (("weights", True), ("statistics or seeds", False)):
        count = sum(v.trainable == trains for v in variables)
        bad = sum(v.trainable == trains for v in wrong)
        if bad:
            found.append(f"{bad} of {count} {kind}")
    return ", ".join(found)


def differs(variable, k, plain, other, noisy):
    gap = largest(other.end[k] - plain.end[k])
    if "int" in variable.dtype:  # a seed, a counter
        return gap > 0
    moved = plain.end[k] - plain.start[k]
    noise = largest(moved - (noisy.end[k] - noisy.start[k]))
    slack = SLACK * noise + SHARE * largest(moved)
    return not gap <= slack + ULP * largest(plain.end[k])


def largest(x):
    return np.max(np.abs(x), initial=0)
