"""Two JAX processes on loopback, each with half of the batch."""

import sys

import common
import jax
import numpy as np

from keras import distribution

ROWS = 8


def train(setting, rows=slice(None)):
    model = common.make(common.graph, setting, norm="layer")
    x, y = common.data(ROWS)
    losses = [
        float(model.train_on_batch(x[rows], y[rows]))
        for _ in range(common.STEPS)
    ]
    values = [np.asarray(v.value.addressable_data(0)) for v in model.variables]
    return losses, values


def main(address, index):
    jax.distributed.initialize(address, 2, index)
    rows = slice(index * ROWS // 2, (index + 1) * ROWS // 2)
    with distribution.DataParallel().scope():
        plain, ours = train(None, rows), train(True, rows)
    with jax.default_device(jax.local_devices()[0]):
        single = train(None)
    common.report(
        devices=[jax.device_count(), jax.local_device_count()],
        losses=[single[0], plain[0], ours[0]],
        to_plain=common.distance(ours[1], plain[1]),
        to_single=common.distance(ours[1], single[1]),
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
