"""`tf.distribute.MirroredStrategy` on two logical devices of one CPU."""

import contextlib

import common
import numpy as np
import tensorflow as tf

import keras

MATMULS = keras.RematPolicy(keep="matmuls")
CASES = {
    "graph": (common.graph, "layer", [True, MATMULS], {}),
    "batch": (common.graph, "batch", [keras.RematPolicy(levels=2)], {}),
    "eager": (common.graph, "layer", [True], {"run_eagerly": True}),
    "layers": (common.Subclassed, "layer", [True], {}),
}


def train(build, setting, strategy=None, run_eagerly=False, **options):
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = common.make(build, setting, **options)
    model.compile(
        model.optimizer, "mse", run_eagerly=run_eagerly, jit_compile=False
    )
    x, y = common.data()
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(common.BATCH)
    common.RUNS.clear()
    history = model.fit(batches, epochs=common.STEPS, verbose=0)
    values = common.numbers(model)
    return len(common.RUNS), [*values, np.array(history.history["loss"])]


def main():
    devices = tf.config.list_physical_devices("CPU")
    logical = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(devices[0], logical)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    single = train(common.graph, None, norm="layer", rate=0.0)
    alone = train(common.graph, True, strategy, norm="layer", rate=0.0)
    common.report(
        case="single",
        replicas=strategy.num_replicas_in_sync,
        to_single=common.distance(alone[1], single[1]),
    )
    for name, (build, norm, settings, options) in CASES.items():
        plain = train(build, None, strategy, norm=norm, **options)
        found = []
        for setting in settings:
            ours = train(build, setting, strategy, norm=norm, **options)
            far = common.distance(ours[1], plain[1])
            found.append([ours[0], plain[0], far])
        common.report(case=name, found=found)


if __name__ == "__main__":
    main()
