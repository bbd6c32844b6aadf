import contextlib

import numpy as np
import pytest
from absl.testing import parameterized

from keras.src import backend
from keras.src import layers
from keras.src import models
from keras.src import ops
from keras.src import testing
from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.backend.common.remat_scope import RematScope
from keras.src.backend.common.remat_test_utils import ChainModel
from keras.src.backend.common.remat_test_utils import Wave
from keras.src.backend.common.remat_test_utils import runs
from keras.src.backend.common.remat_test_utils import step
from keras.src.callbacks import LambdaCallback
from keras.src.remat import profile

X = np.linspace(-1, 1, 24).reshape((4, 6)).astype("float32")
MANY = np.tile(X, (64, 1))


def dense(**kwargs):
    return layers.Dense(6, activation="tanh", **kwargs)


def waves(prefix, n):
    return [Wave(name=f"{prefix}{i}") for i in range(n)]


def functional(parts):
    inputs = outputs = layers.Input((6,))
    for part in parts:
        outputs = part(outputs)
    return models.Model(inputs, outputs)


def sequential(parts):
    return models.Sequential([layers.Input((6,)), *parts])


def subclassed(parts):
    model = ChainModel(*parts)
    model(X)
    return model


def three_deep(make):
    """Nine layers on three levels, counted."""
    inner = make(waves("inner", 3))
    middle = make([*waves("middle", 2), inner])
    return make([*waves("outer", 3), middle, Wave(name="last")])


def deep():
    """A chain in which each layer keeps much more than the weights."""
    return sequential([f for w in waves("w", 12) for f in (dense(), w)])


KINDS = {
    "functional": functional,
    "sequential": sequential,
    "subclassed": subclassed,
}


@pytest.mark.requires_trainable_backend
class PlanningTest(testing.TestCase):
    @parameterized.named_parameters(
        ("functional", functional), ("sequential", sequential)
    )
    def test_inference_stays_inference(self, make):
        """A plan is about training; the call that makes it may not be."""
        profile.CACHE.clear()
        norm = layers.BatchNormalization()
        model = make([norm, layers.Dropout(0.5), dense()])
        plain = ops.convert_to_numpy(model(X))
        model.remat = True
        self.assertAllClose(model(X), plain)
        self.assertAllClose(norm.moving_mean, np.zeros(6))


@pytest.mark.requires_trainable_backend
class RealRunsTest(testing.TestCase):
    def count(self, model, scope=None, x=X):
        def loss(x):
            with scope or contextlib.nullcontext():
                return ops.sum(model(x, training=True))

        with runs() as found:
            step(loss, [x], model.variables)
        return {name: found.count(name) for name in found}

    @parameterized.product(
        kind=list(KINDS),
        scope=[
            {},
            {"every": 2},
            {"mode": "larger_than", "output_size_threshold": 1},
            {"mode": "list_of_layers", "layer_names": ["*"]},
            {"layer_types": Wave},
            {"mode": "activations"},
        ],
    )
    def test_no_layer_runs_more_than_twice(self, kind, scope):
        model = three_deep(KINDS[kind])
        found = self.count(model, RematScope(**scope))
        self.assertLen(found, 9)
        self.assertLessEqual(max(found.values()), 2)
        expected = 1 if scope.get("mode") == "activations" else 2
        self.assertEqual(max(found.values()), expected)

    @parameterized.named_parameters(*KINDS.items())
    def test_the_setting_of_a_model_runs_its_layers_twice(self, make):
        model = three_deep(make)
        model.remat = True
        found = self.count(model)
        self.assertLen(found, 9)
        self.assertEqual(max(found.values()), 2)

    def test_the_setting_of_a_subclassed_model_wins_over_a_scope(self):
        model = subclassed(waves("w", 3))
        model.remat = True
        found = self.count(model, RematScope(None))
        self.assertEqual(set(found.values()), {2})

    @parameterized.named_parameters(*KINDS.items())
    def test_a_model_that_is_off_runs_its_layers_once(self, make):
        model = make(waves("w", 3))
        model.remat = False
        found = self.count(model, RematScope())
        self.assertEqual(set(found.values()), {1})

    def test_two_levels_run_a_layer_up_to_three_times(self):
        model = deep()
        model.remat = RematPolicy(levels=2)
        self.assertEqual(max(self.count(model, x=MANY).values()), 3)

    def test_every_leaves_some_layers_plain(self):
        model = deep()
        model.remat = True
        all_units = list(self.count(model, x=MANY).values()).count(2)
        model.remat = RematPolicy(every=2)
        some = list(self.count(model, x=MANY).values()).count(2)
        self.assertGreater(some, 0)
        self.assertLess(some, all_units)

    def test_a_layer_that_is_off_runs_once(self):
        model = sequential(waves("w", 9))
        model.remat = True
        model.layers[3].remat = False
        found = self.count(model)
        self.assertEqual(found["w3"], 1)
        self.assertEqual(found["w1"], 2)

    @parameterized.named_parameters(*KINDS.items())
    def test_inference_runs_once(self, make):
        model = three_deep(make)
        model.remat = True
        model.compile(loss="mse")
        with runs() as found:
            model.predict(X, batch_size=4, verbose=0)
        self.assertEqual({found.count(n) for n in found}, {1})

    def test_fit_in_a_scope_follows_it(self):
        model = sequential([dense(), *waves("w", 4), layers.Dense(1)])
        model.compile("sgd", "mse")
        counts = []
        for mode in (None, "full", None):
            with RematScope(mode), runs() as found:
                model.fit(X, X[:, :1], batch_size=4, verbose=0)
            counts.append(found.count("w0"))
        self.assertEqual(counts, [1, 2, 1])

    def test_a_callback_may_set_it(self):
        model = sequential([dense(), *waves("w", 4), layers.Dense(1)])
        model.compile("sgd", "mse")
        settings = [None, True, False, RematPolicy(), None]
        set_it = lambda epoch, logs: setattr(model, "remat", settings[epoch])
        callback = LambdaCallback(on_epoch_begin=set_it)
        with runs() as found:
            model.fit(
                *(X, X[:, :1]), 4, epochs=5, callbacks=[callback], verbose=0
            )
        self.assertEqual(found.count("w0"), 1 + 2 + 1 + 2 + 1)

    def test_fit_makes_its_step_again_only_in_another_scope(self):
        model = sequential([dense(), layers.Dense(1)])
        model.compile("sgd", "mse")
        made = []
        for scope in (None, RematScope(), RematScope(), None):
            with scope or contextlib.nullcontext():
                model.fit(X, X[:, :1], batch_size=4, verbose=0)
            made.append(model.train_function)
        plain, full, full_again, plain_again = made
        self.assertIsNot(full, plain)
        self.assertIs(full_again, full)
        self.assertIsNot(plain_again, full)


@pytest.mark.skipif(backend.backend() != "torch", reason="counts saved tensors")
class SavedBytesTest(testing.TestCase):
    def saved(self, model):
        import torch

        kept = {}

        def note(x):
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        weights = {v.value.data_ptr() for v in model.variables}
        with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
            y = model(torch.ones((64, 6), requires_grad=True))
        del y
        return sum(n for pointer, n in kept.items() if pointer not in weights)

    @parameterized.named_parameters(*KINDS.items())
    def test_a_model_with_remat_saves_less(self, make):
        model = make([layers.Dense(6, activation="gelu") for _ in range(9)])
        plain = self.saved(model)
        model.remat = True
        # At most its inputs to each layer, where each layer also had others.
        self.assertLess(self.saved(model), plain / 1.5)
