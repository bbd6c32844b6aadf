"""What one training step of a compiled Keras model needs, without a clock.

`of_step(model, x, y)` measures the trainer's own step: forward, loss,
backward, optimizer, updates of the state. It looks neither at the clock nor at
the size of the process, so two calls give the same numbers:

- JAX: the buffers that XLA assigned to the compiled step. XLA:CPU deletes the
  optimization barriers that keep the two runs of a region apart; the step is
  compiled without that pass, as the trainer compiles it, and as accelerators
  behave.
- TensorFlow: what malloc has handed out, counted by a preloaded library. A
  program calls `prepare()` before it imports Keras.
- torch: the events of the CPU allocator in `torch.profiler`.
"""

import importlib
import os
from typing import NamedTuple

ENGINES = {
    "jax": "measure_jax",
    "tensorflow": "measure_tensorflow",
    "torch": "measure_torch",
}


class Usage(NamedTuple):
    """Bytes and arithmetic of one training step.

    Attributes:
        peak: Most bytes alive at once, beyond weights, optimizer and batch.
        held: Bytes that the forward pass keeps for the backward pass, or
            `None` where the engine does not tell.
        flops: Arithmetic, or `None`.
        timeline: List of bytes alive, in the order of execution.
        backward: Where in the timeline the backward pass begins, or `None`.
    """

    peak: int
    held: int | None
    flops: float | None
    timeline: list
    backward: int | None


def engine(name=None):
    """The module that measures on a backend."""
    name = name or os.environ.get("KERAS_BACKEND", "tensorflow")
    if name not in ENGINES:
        raise SystemExit(
            f"Backend {name!r} does not train, so there is no step to "
            f"measure. Use one of: {', '.join(ENGINES)}."
        )
    return importlib.import_module(ENGINES[name])


def prepare():
    """Sets the engine up; may start the program again. Call it first."""
    engine().prepare()


def of_step(model, x, y):
    """Measures one step of `model.train_on_batch(x, y)`.

    Args:
        model: A compiled model. On torch and TensorFlow it is trained for two
            steps, on JAX it is not.
        x, y: A batch, NumPy arrays.

    Returns:
        A `Usage`.
    """
    return engine().of_step(model, x, y)


class Step:
    """The trainer's own step on one batch, as often as one likes."""

    def __init__(self, model, x, y):
        self.model, self.x, self.y = model, x, y

    def __call__(self):
        return float(self.model.train_on_batch(self.x, self.y))

    def settle(self):
        """Writes all values into the variables of the model."""

    def usage(self):
        return of_step(self.model, self.x, self.y)


def step(model, x, y):
    """A `Step`, or what the engine has in its place."""
    return getattr(engine(), "Step", Step)(model, x, y)


def thinned(timeline, backward, limit=4000):
    """A shorter timeline that keeps the highest value of each stretch."""
    stride = len(timeline) // limit + 1
    short = [
        max(timeline[k : k + stride]) for k in range(0, len(timeline), stride)
    ]
    return short, None if backward is None else backward // stride
