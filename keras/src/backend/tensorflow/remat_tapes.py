"""Which gradient tapes see what a region runs.

The first run of a region is hidden from the tapes around it. TensorFlow can
only stop all tapes of a thread, but those that are opened *in* a region have
to see what runs: a layer may take a gradient in its `call`. So recording goes
on while such a tape is open. The tapes around the region then see it too, and
no harm is done: the results of the region are copies that are recorded as one
operation, whatever they are copies of.
"""

import contextlib
import functools
import threading

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import record

is_stopped = pywrap_tfe.TFE_Py_TapeSetIsStopped
stop = pywrap_tfe.TFE_Py_TapeSetStopOnThread
restart = pywrap_tfe.TFE_Py_TapeSetRestartOnThread


class Paused(threading.local):
    """The regions of this thread that run for the first time."""

    def __init__(self):
        self.regions = []


PAUSED = Paused()


class Region:
    """The tapes that were opened in a region.

    Attributes:
        ours: All of them; one that was there before may be paused and pushed
            again, and stays stopped.
        open: Those that record now.
        restarted: Whether recording goes on for their sake.
    """

    def __init__(self):
        self.ours, self.open, self.restarted = [], [], False

    def push(self, tape):
        if getattr(tape, "_tape", None) is None:  # as of accumulators
            self.ours.append(tape)
        if not any(tape is t for t in self.ours):
            return
        self.open.append(tape)
        if is_stopped():
            restart()
            self.restarted = True

    def pop(self, tape):
        self.open = [t for t in self.open if t is not tape]
        if self.restarted and not self.open:
            stop()
            self.restarted = False


@contextlib.contextmanager
def paused(run):
    """Hides what runs from the tapes around it, but for what `read` reads."""
    run.paused = not is_stopped()
    PAUSED.regions.append(Region())
    try:
        with record.stop_recording():
            yield
    finally:
        PAUSED.regions.pop()
        run.paused = False


@contextlib.contextmanager
def recording(wanted=True):
    """Lets all tapes record again, if they were stopped and it is wanted."""
    stopped = wanted and is_stopped()
    if stopped:
        restart()
    try:
        yield
    finally:
        if stopped:
            stop()


def told(method, tell):
    """A method of a tape that tells the region it is called in."""

    @functools.wraps(method)
    def call(tape):
        if PAUSED.regions:
            tell(PAUSED.regions[-1], tape)
        return method(tape)

    return call


Tape, Accumulator = tf.GradientTape, tf.autodiff.ForwardAccumulator
Tape._push_tape = told(Tape._push_tape, Region.push)
Tape._pop_tape = told(Tape._pop_tape, Region.pop)
Accumulator._push_accumulator = told(Accumulator._push_accumulator, Region.push)
Accumulator._pop_accumulator = told(Accumulator._pop_accumulator, Region.pop)
