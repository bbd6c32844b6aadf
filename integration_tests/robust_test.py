"""What goes wrong in the middle: an interruption, a reload, other threads."""

import threading

import numpy as np
import pytest

import keras
from keras import layers
from keras import ops
from keras.src.backend.common import global_state

BACKEND = keras.backend.backend()
pytestmark = [
    pytest.mark.skipif(
        BACKEND in ("numpy", "openvino"),
        reason="this backend takes no gradients",
    ),
    pytest.mark.filterwarnings("ignore"),
]
SETTINGS = {
    "model": True,
    "policy": keras.RematPolicy(keep="matmuls", levels=2),
}


class Trap(layers.Layer):
    """Raises `error` in one of the next runs, counted down."""

    error, left = None, 0

    def call(self, x):
        if self.error is not None:
            self.left -= 1
            if self.left == 0:
                raise self.error
        return ops.sin(x)


def make(setting, accumulate=None):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8,))
    x = layers.Dense(8, activation="gelu")(inputs)
    x = layers.BatchNormalization()(x)
    x = layers.Dropout(0.3, seed=1)(x)
    x = Trap(name="trap")(x)
    outputs = layers.Dense(8)(x)
    model = keras.Model(inputs, outputs)
    model.remat = setting
    optimizer = keras.optimizers.Adam(
        1e-2, gradient_accumulation_steps=accumulate
    )
    model.compile(optimizer, "mse", run_eagerly=True)
    return model


def data():
    x = np.random.default_rng(0).normal(size=(4, 8)).astype("float32")
    return x, x[:, ::-1].copy()


def train(model, steps):
    losses = []
    for _ in range(steps):
        model.reset_metrics()
        losses.append(float(model.train_on_batch(*data())))
    return losses


def numbers(model):
    return copies(model.variables + model.optimizer.variables)


def copies(variables):
    return [np.array(ops.convert_to_numpy(v.value)) for v in variables]


def assert_equal(ours, plain):
    for a, b in zip(ours, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def surroundings():
    """What Keras keeps for the thread, but for counters of names."""
    tracker = vars(global_state.GLOBAL_STATE_TRACKER)
    return {
        key: list(value) if isinstance(value, list) else value
        for key, value in tracker.items()
        if value and ("remat" in key or "scope" in key or "call_ctx" in key)
    }


class TestInterruptedStep:
    @pytest.mark.parametrize("name", SETTINGS)
    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
    @pytest.mark.parametrize("run", [1, 2])
    def test_it_leaves_nothing_behind(self, name, error, run):
        """The first run is in the forward pass, the second one after it."""
        if BACKEND == "jax" and run == 2:
            pytest.skip("JAX runs its trace again, not the Python function")
        plain, ours = make(None), make(SETTINGS[name])
        assert_equal(train(ours, 2), train(plain, 2))
        trap = ours.get_layer("trap")
        weights = copies(ours.trainable_variables)
        before = surroundings()
        with keras.RematScope("full"):
            trap.error, trap.left = error("stop here"), run
            with pytest.raises(error, match="stop here"):
                train(ours, 1)
            trap.error = None
        assert surroundings() == before
        assert_equal(copies(ours.trainable_variables), weights)
        # Later steps are those of a model that met the same.
        if run == 1:
            trap = plain.get_layer("trap")
            trap.error, trap.left = error("stop here"), 1
            with pytest.raises(error):
                train(plain, 1)
            trap.error = None
        for v, w in zip(ours.variables, plain.variables, strict=True):
            v.assign(w)
        assert_equal(train(ours, 2), train(plain, 2))
        assert_equal(numbers(ours), numbers(plain))

    def test_writes_of_the_region_do_not_come_out(self):
        model = make(None)
        train(model, 1)
        state = copies(model.non_trainable_variables)
        trap = model.get_layer("trap")
        trap.error, trap.left = ValueError("stop here"), 1
        with pytest.raises(ValueError, match="stop here"):
            self.step(keras.remat(lambda x: model(x, training=True)))
        found = copies(model.non_trainable_variables)
        assert_equal(found, state)

    def step(self, f):
        from keras.src.backend.common.remat_test_utils import step

        step(lambda x: ops.sum(f(x)), [data()[0]])


class TestReload:
    @pytest.mark.parametrize("name", SETTINGS)
    def test_training_goes_on(self, name, tmp_path):
        """Halfway through an accumulation of gradients."""
        results = []
        for setting in (None, SETTINGS[name]):
            model = make(setting, accumulate=2)
            losses = train(model, 3)
            model.save(tmp_path / "model.keras")
            again = keras.models.load_model(
                tmp_path / "model.keras", custom_objects={"Trap": Trap}
            )
            assert again is not model
            assert again.remat == setting
            losses += train(again, 3)
            results.append((losses, numbers(again)))
        (expected, plain), (losses, ours) = results
        assert_equal(losses, expected)
        assert_equal(ours, plain)


class TestThreads:
    def test_models_of_two_threads_do_not_meet(self):
        settings = [True, None, SETTINGS["policy"]]
        expected = train(make(None), 4)
        models = [make(setting) for setting in settings]
        found, start = {}, threading.Barrier(len(models))

        def work(i):
            start.wait(60)
            with keras.RematScope("full" if i else None):
                found[i] = train(models[i], 4)

        threads = [
            threading.Thread(target=work, args=[i], daemon=True)
            for i in range(len(models))
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join(300)
        assert sorted(found) == [0, 1, 2]
        for losses in found.values():
            assert_equal(losses, expected)
        for model in models[1:]:
            assert_equal(numbers(model), numbers(models[0]))


@pytest.mark.skipif(BACKEND != "tensorflow", reason="is about TensorFlow")
def test_tf_function_looks_into_a_region():
    import tensorflow as tf

    def f(x):
        for _ in tf.range(3):
            x = tf.sin(x)
        if tf.reduce_sum(x) > -1e9:
            x = x * 2.0
        return x

    def gradient(f):
        x = tf.constant([[0.1, -0.7]])
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(f(x))
        return tape.gradient(loss, x)

    plain, remat = (tf.function(gradient)(g) for g in (f, keras.remat(f)))
    np.testing.assert_allclose(remat, plain, rtol=1e-5)
