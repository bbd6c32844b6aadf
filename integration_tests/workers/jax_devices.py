"""`keras.distribution` on four devices that XLA makes of one CPU.

Reports the collectives of the very programs that the trainer runs.
"""

import os
import re

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import common
import jax
import numpy as np

import keras
from keras import distribution
from keras.src.backend.jax import trainer

KINDS = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
SIZES = {"f32": 4, "s32": 4, "u32": 4, "pred": 1, "f16": 2, "bf16": 2}


class Jit:
    """Like `jax.jit` for one signature; keeps the text of the program."""

    last = None

    def __init__(self, function, **options):
        self.jitted = jax.jit(function, **options)
        self.program = None

    def __call__(self, *args):
        if self.program is None:
            self.program = self.jitted.lower(*args).compile()
            Jit.last = self.program.as_text()
        return self.program(*args)


trainer.jit = Jit


def parallel(name):
    devices = distribution.list_devices()
    if name == "data":
        return distribution.DataParallel(devices=devices)
    mesh = distribution.DeviceMesh((2, 2), ("batch", "model"), devices)
    layout = distribution.LayoutMap(mesh)
    layout[".*up.*kernel"] = (None, "model")
    layout[".*up.*bias"] = ("model",)
    layout[".*down.*kernel"] = ("model", None)
    return distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")


def forward_program(model):
    """The text of the forward part of a training step."""
    state = model._get_jax_state(
        trainable_variables=True,
        non_trainable_variables=True,
        optimizer_variables=True,
        metrics_variables=True,
    )

    def loss(weights, others, optimizer, metrics, x, y):
        return model.compute_loss_and_updates(
            weights, others, metrics, x, y, None, True, optimizer
        )

    batch = trainer._distribute_data(common.data())
    return jax.jit(loss).lower(*state, *batch).compile().as_text()


def bytes_of(shapes):
    """Of all shapes in a piece of HLO text, such as `(f32[2,8], s32[])`."""
    found = re.findall(r"(\w+)\[([\d,]*)\]", shapes)
    return sum(
        SIZES[kind] * int(np.prod([int(d) for d in dims.split(",") if d]))
        for kind, dims in found
        if kind in SIZES
    )


def collectives(text):
    """Number and bytes of the collectives of each kind in a program."""
    found = {}
    for shapes, kind in re.findall(rf"= (\S.*?) ({KINDS})(?:-start)?\(", text):
        count, size = found.get(kind, (0, 0))
        found[kind] = (count + 1, size + bytes_of(shapes))
    return found


def held(text):
    """Shapes, on one device, of all that waits for second runs."""
    lines = re.findall(r"= (\(.*?\)) opt-barrier\(", text)
    shapes = re.findall(r"f32\[([\d,]+)\]", " ".join(lines))
    return [[int(d) for d in s.split(",")] for s in shapes]


def train(build, setting, norm):
    model = common.make(build, setting, norm=norm)
    x, y = common.data()
    losses = [float(model.train_on_batch(x, y)) for _ in range(common.STEPS)]
    return model, losses, common.numbers(model), Jit.last


def check(build, norm, name):
    single = train(build, None, norm)
    keras.backend.clear_session()
    with parallel(name).scope():
        plain, ours = train(build, None, norm), train(build, True, norm)
        common.report(
            case=f"{build.__name__} {norm}",
            losses=[single[1], plain[1], ours[1]],
            to_plain=common.distance(ours[2], plain[2]),
            to_single=common.distance(ours[2], single[2]),
            shardings=[
                [str(v.value.sharding) for v in model.variables]
                for model in (plain[0], ours[0])
            ],
            plain=collectives(plain[3]),
            remat=collectives(ours[3]),
            forward=collectives(forward_program(plain[0])),
            held=held(ours[3]),
        )


if __name__ == "__main__":
    check(common.graph, "batch", common.argument())
    check(common.Subclassed, "layer", common.argument())
