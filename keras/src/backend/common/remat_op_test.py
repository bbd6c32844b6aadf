import functools
import inspect

import numpy as np
import pytest
from absl.testing import parameterized

from keras.src import backend
from keras.src import layers
from keras.src import models
from keras.src import ops
from keras.src import testing
from keras.src.backend.common.masking import get_keras_mask
from keras.src.backend.common.masking import set_keras_mask
from keras.src.backend.common.remat_checks import KEEP_WORDS
from keras.src.backend.common.remat_op import remat
from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.backend.common.remat_test_utils import counted
from keras.src.backend.common.remat_test_utils import runs
from keras.src.backend.common.remat_test_utils import step
from keras.src.remat.name_op import remat_name

X = np.linspace(-1, 1, 6).reshape((2, 3)).astype("float32")


class Scale:
    def __init__(self, factor):
        self.factor = factor

    def method(self, x):
        return ops.sin(counted(x * self.factor))

    @remat
    def decorated(self, x):
        return ops.sin(counted(x * self.factor))


@remat
def bare(x):
    return ops.sin(counted(x * 2.0))


@remat()
def called(x):
    return ops.sin(counted(x * 2.0))


@remat(policy=RematPolicy())
def with_policy(x):
    return ops.sin(counted(x * 2.0))


def scaled(factor, x, shift=1.0):
    return ops.sin(counted(x * factor) + shift)


FORMS = {
    "bare": bare,
    "called": called,
    "with_policy": with_policy,
    "lambda": remat(lambda x: ops.sin(counted(x * 2.0))),
    "partial": remat(functools.partial(scaled, 2.0, shift=0.0)),
    "bound_method": remat(Scale(2.0).method),
    "decorated_method": Scale(2.0).decorated,
    "word_as_policy": remat(
        lambda x: ops.sin(counted(x * 2.0)), policy="nothing"
    ),
}


class RematTest(testing.TestCase):
    def test_it_is_one_object(self):
        self.assertIs(ops.remat, remat)
        self.assertIs(ops.remat_name, remat_name)

    @parameterized.named_parameters(*FORMS.items())
    @pytest.mark.requires_trainable_backend
    def test_each_form_runs_again_with_the_right_gradient(self, f):
        with runs() as found:
            _, (gradient,), _ = step(lambda x: ops.sum(f(x)), [X])
        self.assertLen(found, 2)
        self.assertAllClose(gradient, 2 * np.cos(2 * X), atol=1e-5)

    @parameterized.named_parameters(*FORMS.items())
    def test_each_form_gives_the_plain_result(self, f):
        self.assertAllClose(f(X), np.sin(2 * X), atol=1e-5)

    def test_name_docstring_and_signature_are_kept(self):
        def f(x, *, deep=False):
            """Says what it does."""

        for g in (remat(f), remat(policy=RematPolicy())(f)):
            self.assertEqual(g.__name__, "f")
            self.assertEqual(g.__doc__, "Says what it does.")
            self.assertEqual(inspect.signature(g), inspect.signature(f))

    @parameterized.parameters(3, "f", [[]])
    def test_what_is_not_callable_is_refused(self, f):
        with self.assertRaisesRegex(TypeError, "Received: f="):
            remat(f)

    @parameterized.named_parameters(
        ("word", "everything"), ("number", 3), ("config", {"kept": "matmuls"})
    )
    def test_an_unknown_policy_lists_the_valid_ones(self, policy):
        with self.assertRaises(ValueError) as caught:
            remat(lambda x: x, policy=policy)
        for word in KEEP_WORDS:
            self.assertIn(repr(word), str(caught.exception))
        self.assertIn(repr(policy), str(caught.exception))

    def test_symbolic_inputs_make_a_graph(self):
        x = backend.KerasTensor((2, 3), dtype="float32")
        f = remat(lambda x: {"y": ops.sum(ops.sin(x), axis=-1), "n": None})
        results = f(x)
        self.assertEqual(results["y"].shape, (2,))
        self.assertIsNone(results["n"])
        spec = backend.compute_output_spec(remat(ops.sin), x)
        self.assertEqual(spec.shape, (2, 3))

    def test_in_a_functional_model(self):
        inputs = layers.Input((3,))
        outputs = remat(lambda x: ops.sin(x) * 2.0)(inputs)
        model = models.Model(inputs, outputs)
        self.assertAllClose(model(X), 2 * np.sin(X), atol=1e-5)

    @pytest.mark.requires_trainable_backend
    def test_inside_vectorized_map(self):
        f = remat(lambda x: ops.sum(ops.sin(x)))
        loss, (gradient,), _ = step(
            lambda x: ops.sum(ops.vectorized_map(f, x)), [X]
        )
        self.assertAllClose(loss, np.sum(np.sin(X)), atol=1e-5)
        self.assertAllClose(gradient, np.cos(X), atol=1e-5)


class RematNameTest(testing.TestCase):
    def test_it_is_the_identity(self):
        x = ops.convert_to_tensor(X)
        self.assertAllEqual(remat_name(x, "scores"), X)

    def test_symbolic_tensors_get_a_node(self):
        x = backend.KerasTensor((2, None), dtype="float16")
        y = remat_name(x, "scores")
        self.assertEqual((y.shape, y.dtype), (x.shape, x.dtype))
        self.assertIs(
            y._keras_history.operation._inbound_nodes[0].outputs[0], y
        )

    def test_a_mask_stays(self):
        mask = ops.convert_to_tensor(X > 0)

        @remat(policy=RematPolicy(keep=["wave"]))
        def f(x):
            y = ops.sin(x)
            set_keras_mask(y, mask)
            y = remat_name(y, "wave")
            return y * ops.cast(get_keras_mask(y), "float32")

        self.assertAllClose(f(X), np.sin(X) * (X > 0), atol=1e-5)
        if backend.backend() in ("jax", "tensorflow", "torch"):
            _, (gradient,), _ = step(lambda x: ops.sum(f(x)), [X])
            self.assertAllClose(gradient, np.cos(X) * (X > 0), atol=1e-5)

    def test_in_a_saved_graph(self):
        inputs = layers.Input((3,))
        outputs = ops.sin(remat_name(ops.sin(inputs), "wave"))
        model = models.Model(inputs, outputs)
        copy = models.Model.from_config(model.get_config())
        self.assertAllClose(copy(X), np.sin(np.sin(X)), atol=1e-5)
        names = [getattr(op, "value_name", None) for op in copy.operations]
        self.assertIn("wave", names)

    @parameterized.parameters(3, None, *KEEP_WORDS)
    def test_a_name_must_be_a_string_that_is_no_word(self, name):
        with self.assertRaisesRegex(ValueError, "`name` must be a string"):
            remat_name(X, name)

    @pytest.mark.requires_trainable_backend
    def test_gradients_pass_through_in_a_region_that_keeps_it(self):
        @remat(policy=RematPolicy(keep=["wave"]))
        def f(x):
            return ops.sum(ops.sin(remat_name(ops.sin(x), "wave")))

        _, (gradient,), _ = step(f, [X])
        expected = np.cos(np.sin(X)) * np.cos(X)
        self.assertAllClose(gradient, expected, atol=1e-5)
