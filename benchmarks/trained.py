"""A model under a strategy: its numbers, its needs, its times."""

import time

import equal
import measure
import numpy as np

import keras

STEPS = 2
SHORTEST = 0.05  # seconds that a sample of the clock takes at least


class Trained:
    """A model after its first steps.

    Args:
        model: The model to train.
        case: The `models.Case` that it comes from.
        mode: `"eager"`, `"xla"` or `""` for what the backend does by default.
    """

    def __init__(self, model, case, mode=""):
        self.model, self.case = model, case
        on_jax = keras.config.backend() == "jax"
        model.compile(
            optimizer=keras.optimizers.SGD(1e-2),
            loss=case.loss,
            jit_compile=on_jax or mode == "xla",
            run_eagerly=mode == "eager",
        )
        if not model.built:
            model(case.x)
        self.variables = case.model.variables
        start = self.values()
        before = time.process_time()
        self.step = measure.step(model, case.x, case.y)
        losses = [self.step()]
        first = time.process_time() - before
        losses += [self.step() for _ in range(STEPS - 1)]
        self.course = equal.Course(np.array(losses), start, self.values())
        self.repeats = max(1, int(SHORTEST / self.seconds(1)))
        # What is left is tracing, planning and compiling.
        self.setup = max(0.0, first - self.seconds())

    def values(self):
        """The variables as arrays of float64."""
        if hasattr(self, "step"):
            self.step.settle()
        arrays = [keras.ops.convert_to_numpy(v) for v in self.variables]
        return [np.array(a, dtype="float64") for a in arrays]

    def seconds(self, repeats=None):
        """Processor time of one step, so that other programs do not count."""
        repeats = repeats or self.repeats
        start = time.process_time()
        for _ in range(repeats):
            self.step()
        return (time.process_time() - start) / repeats

    def nearby(self):
        """The course from weights that differ in the last digits."""
        self.step.settle()
        start = equal.nearby(self.variables, self.course.start)
        for v, value in zip(self.variables, start):
            v.assign(value.astype(v.dtype))
        losses = np.array([self.step() for _ in range(STEPS)])
        return equal.Course(losses, start, self.values())

    def usage(self):
        return self.step.usage()
