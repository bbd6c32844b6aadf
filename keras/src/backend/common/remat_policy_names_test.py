"""Policies at work: equal numbers, and warnings of names that no value has."""

import warnings

import numpy as np
import pytest
from absl.testing import parameterized

from keras.src import backend
from keras.src import layers
from keras.src import models
from keras.src import ops
from keras.src import testing
from keras.src.backend.common.remat_op import remat
from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.backend.common.remat_policy import warn_not_offloaded
from keras.src.backend.common.remat_scope import RematScope
from keras.src.backend.common.remat_test_utils import ChainModel
from keras.src.backend.common.remat_test_utils import step
from keras.src.backend.common.remat_test_utils import warned_of
from keras.src.remat.name_op import remat_name

X = np.linspace(-1, 1, 12).reshape((3, 4)).astype("float32")


def keep_large(op_name, value_name, shape, dtype):
    return len(shape) > 1


class Named(layers.Layer):
    def __init__(self, value_name, **kwargs):
        super().__init__(**kwargs)
        self.value_name = value_name

    def call(self, x):
        return ops.sin(remat_name(ops.sin(x), self.value_name))

    def get_config(self):
        return {**super().get_config(), "value_name": self.value_name}


class Both(models.Model):
    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def call(self, x):
        return self.second(self.first(x))


class RematPolicyNamesTest(testing.TestCase):
    @parameterized.named_parameters(
        ("matmuls", "matmuls", False),
        ("name", ["wave"], False),
        ("function", keep_large, False),
        ("offload_all", "matmuls", True),
        ("offload_name", ["wave"], ["wave"]),
    )
    @pytest.mark.requires_trainable_backend
    def test_numbers_stay_equal(self, keep, offload):
        policy = RematPolicy(keep=keep, offload=offload)
        self.assert_equal_numbers(policy, compiled=False)
        self.assert_equal_numbers(policy, compiled=True)

    @pytest.mark.requires_trainable_backend
    @pytest.mark.skipif(
        backend.backend() == "jax",
        reason="JAX has a memory of the host beside that of a CPU",
    )
    def test_a_device_that_cannot_offload_is_warned_of_once(self):
        warn_not_offloaded.cache_clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for offload in (True, ["wave"], True):
                policy = RematPolicy(keep="matmuls", offload=offload)
                self.assert_equal_numbers(policy, compiled=False)
        found = [w for w in caught if "memory of the host" in str(w.message)]
        self.assertLen(found, 1)

    def assert_equal_numbers(self, policy, compiled):
        dense, drop = layers.Dense(4), layers.Dropout(0.5, seed=3)
        dense.build((None, 4))

        def f(x):
            y = remat_name(ops.sin(dense(x)), "wave")
            return ops.sum(ops.tanh(drop(dense(y), training=True)) ** 2)

        seed = drop.seed_generator.state
        start = ops.convert_to_numpy(seed)
        results = []
        for g in (f, remat(f, policy=policy)):
            seed.assign(start)
            variables = dense.variables + drop.variables
            results.append(step(g, [X], variables, compiled))
        expected, found = results
        self.assertAllClose(found[0], expected[0], atol=1e-5)
        for a, b in zip(found[1] + found[2], expected[1] + expected[2]):
            self.assertAllClose(a, b, atol=1e-5)

    @pytest.mark.requires_trainable_backend
    def test_a_name_that_no_value_has_is_warned_of_once(self):
        policy = RematPolicy(keep=["wave", "absent"])
        f = remat(lambda x: remat_name(ops.sin(x), "wave"), policy=policy)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                step(lambda x: ops.sum(f(x)), [X])
        texts = [str(w.message) for w in caught]
        texts = [t for t in texts if "RematPolicy" in t]
        self.assertLen(texts, 1)
        self.assertIn("['absent']", texts[0])

    @pytest.mark.requires_trainable_backend
    def test_each_layer_of_a_model_may_have_some_of_the_names(self):
        for second, missing in (("second", []), ("absent", ["['absent']"])):
            policy = RematPolicy(keep=["first", second])
            parts = [Named("first"), Named("second")]
            for part in parts:
                part.remat = policy
            copies = [Named.from_config(part.get_config()) for part in parts]
            for made in (parts, copies):
                model = models.Sequential(made)
                run = lambda: step(lambda x: ops.sum(model(x)), [X])
                self.assertEqual(warned_of("RematPolicy", run), missing)

    @parameterized.parameters("graph", "subclass", "scope")
    @pytest.mark.requires_trainable_backend
    def test_the_names_of_a_model(self, kind):
        policy = RematPolicy(keep=["first", "second", f"absent_{kind}"])
        model = models.Sequential([Named("first"), Named("second")])
        if kind == "subclass":
            model = Both(*model.layers)
        model(X)

        def run():
            for _ in range(2):
                step(lambda x: ops.sum(model(x)), [X])

        def run_in_scope():
            with RematScope(policy=policy):
                run()

        if kind == "scope":
            found = warned_of("RematPolicy", run_in_scope)
        else:
            model.remat = policy
            found = warned_of("RematPolicy", run)
        self.assertEqual(found, [f"['absent_{kind}']"])

    @pytest.mark.requires_trainable_backend
    def test_one_warning_in_fit(self):
        policy = RematPolicy(keep=["dense/linear", "absent_fit"])
        model = models.Sequential([layers.Dense(4), layers.Dense(4)])
        model.remat = policy
        model.compile("sgd", "mse")

        def run():
            model.fit(X, X, batch_size=2, epochs=2, verbose=0)

        self.assertEqual(warned_of("RematPolicy", run), ["['absent_fit']"])

    @parameterized.parameters("graph", "subclass", "layers")
    @pytest.mark.requires_trainable_backend
    def test_fit_waits_for_names_of_later_regions(self, kind):
        policy = RematPolicy(keep=["first", "second"])
        parts = [Named("first"), layers.Dense(4), Named("second")]
        model = models.Sequential(parts)
        if kind != "graph":
            model = ChainModel(*parts)
        for part in parts if kind == "layers" else [model]:
            part.remat = policy
        model.compile("sgd", "mse")
        run = lambda: model.fit(X, X, batch_size=2, epochs=2, verbose=0)
        self.assertEqual(warned_of("RematPolicy", run), [])
