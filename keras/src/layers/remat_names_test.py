"""Tests of the names that layers give to what is dear in them."""

import contextlib
import warnings

import numpy as np
import pytest
from absl.testing import parameterized

from keras.src import backend
from keras.src import layers
from keras.src import models
from keras.src import ops
from keras.src import testing
from keras.src import utils
from keras.src.backend.common.remat_op import remat
from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.backend.common.remat_scope import RematScope
from keras.src.backend.common.remat_test_utils import products
from keras.src.backend.common.remat_test_utils import step

ROWS = np.linspace(-1, 1, 48).reshape((2, 4, 6)).astype("float32")
IMAGES = np.linspace(-1, 1, 300).reshape((2, 5, 5, 6)).astype("float32")
DROP = {"dropout": 0.5, "seed": 3}  # attention is not fused then


class Subclassed(models.Model):
    """Its parts are regions of their own; not all have all names."""

    def __init__(self):
        super().__init__()
        self.parts = [layers.Conv1D(4, 2), layers.Dense(3)]

    def call(self, x):
        for part in self.parts:
            x = part(x)
        return x


def sequential():
    return models.Sequential(Subclassed().parts)


def nested():
    model = Subclassed()
    model.parts = [models.Sequential([part]) for part in model.parts]
    return model


def heads(**kwargs):
    return layers.MultiHeadAttention(2, 4, **kwargs)


def groups(**kwargs):
    return layers.GroupedQueryAttention(4, 2, 1, **kwargs)


def call(layer, x):
    if isinstance(layer, layers.Attention):
        return layer([x, ops.sin(x)])
    if isinstance(
        layer, (layers.MultiHeadAttention, layers.GroupedQueryAttention)
    ):
        return layer(x, x, training=True)
    return layer(x)


def no_gradient():
    """torch records always, the others only when asked to."""
    if backend.backend() == "torch":
        import torch

        return torch.no_grad()
    return contextlib.nullcontext()


# A name, and a layer in which it spares one product (projections: four).
CASES = {
    "dense": ("dense/linear", lambda: layers.Dense(3)),
    "einsum_dense": (
        "einsum_dense/linear",
        lambda: layers.EinsumDense("abc,cd->abd", (None, 3)),
    ),
    "projections": ("einsum_dense/linear", heads),
    "conv1d": ("conv/linear", lambda: layers.Conv1D(3, 2)),
    "conv1d_causal": (
        "conv/linear",
        lambda: layers.Conv1D(3, 2, padding="causal"),
    ),
    "conv2d": ("conv/linear", lambda: layers.Conv2D(3, 2)),
    "transpose": ("conv/linear", lambda: layers.Conv2DTranspose(3, 2)),
    "depthwise": ("conv/linear", lambda: layers.DepthwiseConv2D(2)),
    "separable": ("conv/linear", lambda: layers.SeparableConv2D(3, 2)),
    "scores": ("attention/scores", lambda: heads(**DROP)),
    "context": ("attention/context", lambda: heads(**DROP)),
    "context_fused": ("attention/context", heads),
    "grouped_scores": ("attention/scores", lambda: groups(**DROP)),
    "grouped_context": ("attention/context", lambda: groups(**DROP)),
    "dot_scores": ("attention/scores", layers.Attention),
    "dot_context": ("attention/context", layers.Attention),
    "additive_context": ("attention/context", layers.AdditiveAttention),
}


@pytest.mark.requires_trainable_backend
class NamesTest(testing.TestCase):
    def make(self, case):
        """The name, the layer, a loss of its results, and an input."""
        utils.set_random_seed(7)
        name, make = CASES[case]
        layer = make()
        is_conv = name == "conv/linear" and "conv1d" not in case
        x = IMAGES if is_conv else ROWS
        call(layer, ops.convert_to_tensor(x))

        def f(x):
            return ops.sum(ops.sin(call(layer, x)) ** 2)

        return name, layer, f, x

    @parameterized.named_parameters(*((case, case) for case in CASES))
    def test_what_is_named_is_kept_and_the_rest_is_not(self, case):
        name, layer, f, x = self.make(case)

        def count(keep):
            g = remat(f, policy=RematPolicy(keep=keep))
            return products(g, [x], layer.variables)

        spared = count("nothing") - count([name])
        self.assertEqual(spared, 4 if case == "projections" else 1)
        self.assertEqual(count(["another"]), count("nothing"))

    @parameterized.parameters("dense", "conv2d", "projections", "scores")
    def test_numbers_stay_equal(self, case):
        results = []
        for rematerialize in (False, True):
            name, layer, f, x = self.make(case)
            if rematerialize:
                f = remat(f, policy=RematPolicy(keep=[name]))
            loss, a, b = step(f, [x], layer.variables, compiled=True)
            results.append((loss, *a, *b, *layer.non_trainable_variables))
        for expected, found in zip(*results):
            if expected is None:
                self.assertIsNone(found)
            else:
                self.assertAllClose(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.requires_trainable_backend
class UnseenTest(testing.TestCase):
    """Names that no value has are warned of, for a model as a whole."""

    def warned(self, f):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            f()
        texts = [str(w.message) for w in caught]
        return [t for t in texts if "`RematPolicy` keeps" in t]

    def train(self, model, steps=2):
        for _ in range(steps):
            f = lambda x: ops.sum(model(x))
            step(f, [ROWS], model.variables, compiled=True)

    def train_in_scope(self, model, policy):
        with RematScope(policy=policy):
            self.train(model)

    @parameterized.named_parameters(
        ("graph", sequential),
        ("subclassed", Subclassed),
        ("nested", nested),
    )
    def test_of_a_model(self, make):
        for names, found in (
            (["dense/linear", "conv/linear"], 0),
            (["dense/linear", "absent"], 1),
        ):
            model = make()
            model(ROWS)
            model.remat = RematPolicy(keep=names)
            self.assertLen(self.warned(lambda: self.train(model)), found)
            policy = RematPolicy(keep=names)
            model = make()
            model(ROWS)
            texts = self.warned(lambda: self.train_in_scope(model, policy))
            self.assertLen(texts, found)

    def test_only_when_a_gradient_was_taken(self):
        dense = layers.Dense(3)
        dense.build((None, 4, 6))
        f = remat(dense, policy=RematPolicy(keep=["absent"]))
        with no_gradient():
            self.assertEqual(self.warned(lambda: f(ROWS)), [])
        (text,) = self.warned(lambda: self.train(f))
        self.assertIn("['absent']", text)
