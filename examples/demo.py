"""Trains a small language model twice: plain, and with `model.remat = True`.

    KERAS_BACKEND=jax python examples/demo.py [--steps 30]

The text is Keras's own Python source, one token a byte. Both models start from
the same weights and see the same batches and the same dropout, step by step
beside each other. Then a table says what a step needs and whether the two
models are equal, and a picture shows memory over one step.
"""

import argparse
import os
import pathlib
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
os.environ.setdefault("KERAS_BACKEND", "jax")

import measure  # noqa: E402

if __name__ == "__main__":
    measure.prepare()  # before TensorFlow is imported

import matplotlib  # noqa: E402
import numpy as np  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.progress import BarColumn  # noqa: E402
from rich.progress import MofNCompleteColumn  # noqa: E402
from rich.progress import Progress  # noqa: E402
from rich.progress import TextColumn  # noqa: E402
from rich.progress import TimeRemainingColumn  # noqa: E402
from rich.table import Table  # noqa: E402

import keras  # noqa: E402
from keras import layers  # noqa: E402

matplotlib.use("Agg")

import chart  # noqa: E402

VOCABULARY = 256
LENGTH = 128
WIDTH = 128
BLOCKS = 8
BATCH = 8
MIB = 2**20


class Positions(layers.Layer):
    """Adds a learned vector for each position."""

    def build(self, shape):
        self.table = self.add_weight(shape=shape[1:], name="table")

    def call(self, x):
        return x + self.table


def block(x, k, heads=4, dropout=0.1):
    h = layers.LayerNormalization(name=f"block{k}_norm1")(x)
    attention = layers.MultiHeadAttention(
        heads, WIDTH // heads, name=f"block{k}_attention"
    )
    h = attention(h, h, use_causal_mask=True)
    h = layers.Dropout(dropout, name=f"block{k}_dropout1")(h)
    x = layers.Add(name=f"block{k}_add1")([x, h])
    h = layers.LayerNormalization(name=f"block{k}_norm2")(x)
    h = layers.Dense(4 * WIDTH, activation="gelu", name=f"block{k}_up")(h)
    h = layers.Dense(WIDTH, name=f"block{k}_down")(h)
    h = layers.Dropout(dropout, name=f"block{k}_dropout2")(h)
    return layers.Add(name=f"block{k}_add2")([x, h])


def make_model(remat):
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    tokens = keras.Input((LENGTH,), dtype="int32", name="tokens")
    x = layers.Embedding(VOCABULARY, WIDTH, name="embedding")(tokens)
    x = Positions(name="positions")(x)
    for k in range(BLOCKS):
        x = block(x, k)
    x = layers.LayerNormalization(name="norm")(x)
    logits = layers.Dense(VOCABULARY, name="head")(x)
    model = keras.Model(tokens, logits)
    if remat:
        model.remat = True
    model.compile(
        optimizer=keras.optimizers.SGD(0.03, momentum=0.9, nesterov=True),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=keras.config.backend() == "jax",
    )
    return model


def read_text(limit=2_000_000):
    """Keras's own source, as an array of bytes."""
    folder = pathlib.Path(keras.__file__).parent / "src"
    text = b""
    for path in sorted(folder.rglob("*.py")):
        text += path.read_bytes()
        if len(text) > limit:
            break
    return np.frombuffer(text, dtype="uint8")


def batches(text, steps):
    """Random windows of the text and, as targets, the bytes that follow."""
    generator = np.random.default_rng(0)
    for _ in range(steps):
        starts = generator.integers(0, len(text) - LENGTH - 1, BATCH)
        window = starts[:, None] + np.arange(LENGTH + 1)
        tokens = text[window].astype("int32")
        yield tokens[:, :-1], tokens[:, 1:]


class Run:
    """One of the two trainings."""

    def __init__(self, name, remat):
        self.name = name
        self.model = make_model(remat)
        self.seconds = []
        self.losses = []

    # torch draws dropout from its global generator, which both runs share, so
    # that it is seeded anew each time.

    def usage(self, x, y):
        keras.utils.set_random_seed(0)
        return measure.of_step(self.model, x, y)

    def step(self, x, y):
        keras.utils.set_random_seed(len(self.losses))
        start = time.perf_counter()
        self.losses.append(float(self.model.train_on_batch(x, y)))
        self.seconds.append(time.perf_counter() - start)

    def weights(self):
        values = [keras.ops.convert_to_numpy(v) for v in self.model.variables]
        return [v for v in values if v.dtype.kind == "f"]

    def seconds_per_step(self):
        return statistics.median(self.seconds[2:] or self.seconds)


def train(runs, steps, seconds, text, console):
    """Both models, one step each in turn, until the time is up."""
    end = time.perf_counter() + seconds
    columns = [
        TextColumn("[bold]{task.description:<9}"),
        BarColumn(bar_width=32),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}"),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=console) as progress:
        tasks = [
            progress.add_task(run.name, total=steps, loss="-") for run in runs
        ]
        for k, (x, y) in enumerate(batches(text, steps)):
            turn = list(zip(runs, tasks))
            for run, task in turn if k % 2 else reversed(turn):
                run.step(x, y)
                loss = f"{run.losses[-1]:.4f}"
                progress.update(task, advance=1, loss=loss)
            if time.perf_counter() > end:
                break
    done = len(runs[0].losses)
    if done < steps:
        console.print(
            f"Stopped after {done} of {steps} steps, as {seconds:.0f} seconds "
            "were over (--seconds)"
        )


def difference(runs):
    """Largest difference between the weights of two runs."""
    pairs = zip(*(run.weights() for run in runs))
    return max(float(np.abs(a - b).max()) for a, b in pairs)


def verdict(runs, tolerance=1e-3):
    gap = difference(runs)
    if gap == 0:
        return "equal to the last bit"
    word = "equal" if gap < tolerance else "NOT EQUAL"
    return f"{word}: weights differ by {gap:.1g} at most"


def show(runs, usages, console):
    plain, other = usages
    table = Table(title=f"Keras {keras.__version__}, {keras.config.backend()}")
    table.add_column("of one training step")
    for run in runs:
        table.add_column(run.name, justify="right")
    table.add_column("ratio", justify="right", style="bold")

    def row(title, values, text):
        cells = ["-" if v is None else text(v) for v in values]
        known = None not in values and values[0]
        ratio = f"{values[1] / values[0]:.2f}" if known else "-"
        table.add_row(title, *cells, ratio)

    size = lambda v: f"{v / MIB:.1f} MiB"
    row("peak memory*", (plain.peak, other.peak), size)
    row("kept for the backward pass", (plain.held, other.held), size)
    row("arithmetic", (plain.flops, other.flops), lambda v: f"{v / 1e9:.1f} G")
    times = [run.seconds_per_step() for run in runs]
    row("time", times, lambda v: f"{1e3 * v:.0f} ms")
    losses = [f"{run.losses[-1]:.6f}" for run in runs]
    table.add_row(f"loss after {len(runs[0].losses)} steps", *losses, "")
    console.print(table)
    console.print("* beyond weights, optimizer and batch", style="dim")
    console.print(verdict(runs), style="bold")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=100)
    options = parser.parse_args()
    console = Console()
    text = read_text()
    runs = [Run("plain", False), Run("remat", True)]
    x, y = next(batches(text, 1))
    with console.status("Measuring the memory of a step ..."):
        usages = [run.usage(x, y) for run in runs]
    train(runs, options.steps, options.seconds, text, console)
    show(runs, usages, console)
    if usages[0].peak is not None:
        name = f"memory-{keras.config.backend()}.png"
        path = ROOT / "build" / "demo" / name
        chart.draw_step(path, {r.name: u for r, u in zip(runs, usages)})
        console.print(f"Memory over one step: {path}")


if __name__ == "__main__":
    main()
