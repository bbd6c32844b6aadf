"""In eager mode, products that a region keeps do not run a second time."""

import collections
import contextlib
import weakref

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
from keras.src.remat.name_op import remat_name

tf = pytest.importorskip("tensorflow")
remat_ops = pytest.importorskip("keras.src.backend.tensorflow.remat_ops")
pytestmark = pytest.mark.skipif(
    backend.backend() != "tensorflow", reason="is about TensorFlow"
)

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(2, 6, 4)).astype("float32")
IMAGE = RNG.normal(size=(2, 9, 9, 4)).astype("float32")
SQUARE = RNG.normal(size=(4, 4)).astype("float32")
HEADS = RNG.normal(size=(2, 6, 2, 4)).astype("float32")
KERNEL = RNG.normal(size=(3, 3, 4, 4)).astype("float32")
CUBE = KERNEL[:, :, :2, None, :1]
FIRST = IMAGE.transpose(0, 3, 1, 2)
TAPS = KERNEL[..., :1]
BIAS = RNG.normal(size=(1, 1, 6, 6)).astype("float32")
MASK = np.arange(6)[None, None, None] > 1
NAMES = ("einsum_dense/linear", "attention/scores", "attention/context")
NAMES = [*NAMES, "conv/linear", "dense/linear"]


@contextlib.contextmanager
def executed():
    """Counts the operations that really run: they make new tensors."""
    from tensorflow.python.framework import op_callbacks

    found, made, ids = collections.Counter(), [], set()

    def see(op_type, inputs, attrs, outputs, op_name=None, graph=None):
        if graph is None and not any(id(x) in ids for x in outputs):
            found[tf.compat.as_str(op_type)] += 1
        made.extend(outputs)  # Or another tensor would get its `id`.
        ids.update(id(x) for x in outputs)
        return outputs

    op_callbacks.add_op_callback(see)
    try:
        yield found
    finally:
        op_callbacks.remove_op_callback(see)


def gradients(f, tensors, order=1):
    """The gradients of a function of arrays, and how many products ran."""
    tensors = [tf.constant(x) for x in tensors]
    with executed() as ran:
        with tf.GradientTape() as outer:
            outer.watch(tensors)
            with tf.GradientTape() as tape:
                tape.watch(tensors)
                y = tf.reduce_sum(tf.sin(f(*tensors)))
            if order == 1:
                found = tape.gradient(y, tensors)
            else:
                first = tape.gradient(y, tensors)
                again = tf.add_n([tf.reduce_sum(tf.sin(g)) for g in first])
        if order == 2:
            found = outer.gradient(again, tensors)
    return [np.array(g) for g in found], products_of(ran)


def products_of(ran):
    kinds = remat_ops.PRODUCTS.keys() | remat_ops.CONVOLUTIONS
    return sum(ran[kind] for kind in kinds)


def two_dtypes(x, y):
    return ops.matmul(ops.cast(x, "float64"), y)


def einsum(subscripts):
    return lambda *args: ops.einsum(subscripts, *args)


def masked(q, k, v, bias):
    kwargs = {"bias": bias, "mask": MASK, "scale": 0.3, "is_causal": True}
    return ops.dot_product_attention(q, k, v, **kwargs)


# What is called, on what, how many products it makes, and other arguments.
CHANNELS_FIRST = {"data_format": "channels_first"}
DILATED = {"strides": 2, "dilation_rate": 2, "padding": "same"}
FUNCTIONS = {
    "matmul": (ops.matmul, [SQUARE, SQUARE], 1, {}),
    "of_rows": (ops.matmul, [ROWS, SQUARE], 1, {}),
    "of_batches": (ops.matmul, [ROWS[:, :4], ROWS[:, 2:]], 1, {}),
    "of_itself": (lambda x: ops.matmul(x, x), [SQUARE], 1, {}),
    "of_a_vector": (ops.matmul, [ROWS, SQUARE[0]], 1, {}),
    "of_two_dtypes": (two_dtypes, [SQUARE, SQUARE], 1, {}),
    "dot": (ops.dot, [ROWS, SQUARE], 1, {}),
    "inner": (ops.inner, [ROWS, SQUARE], 1, {}),
    "tensordot": (ops.tensordot, [ROWS, ROWS], 1, {"axes": [[1], [1]]}),
    "einsum": (einsum("abc,cd->abd"), [ROWS, SQUARE], 1, {}),
    "of_three": (einsum("abc,cd,de->aeb"), [ROWS, SQUARE, SQUARE], 2, {}),
    "of_heads": (einsum("btnh,bsnh->bnts"), [HEADS, HEADS], 1, {}),
    "attention": (ops.dot_product_attention, [HEADS] * 3, 2, {}),
    "masked": (masked, [*[HEADS] * 3, BIAS], 2, {}),
    "conv": (ops.conv, [IMAGE, KERNEL], 1, {"padding": "same"}),
    "conv_dilated": (ops.conv, [IMAGE, KERNEL], 1, {"dilation_rate": 2}),
    "conv_1d": (ops.conv, [ROWS, KERNEL[0]], 1, {}),
    "conv_3d": (ops.conv, [IMAGE[..., None], CUBE], 1, {}),
    "conv_transpose": (ops.conv_transpose, [IMAGE, KERNEL], 1, {"strides": 2}),
    "depthwise": (ops.depthwise_conv, [IMAGE, TAPS], 1, {}),
    "depthwise_dilated": (ops.depthwise_conv, [IMAGE, TAPS], 1, DILATED),
    "depthwise_first": (ops.depthwise_conv, [FIRST, TAPS], 1, CHANNELS_FIRST),
    "separable": (ops.separable_conv, [IMAGE, TAPS, KERNEL[:1, :1]], 2, {}),
}


class TestCase(testing.TestCase):
    def assert_close(self, found, expected):
        for a, b in zip(found, expected, strict=True):
            self.assertAllClose(a, b, rtol=1e-4, atol=1e-5)


class EachFunctionTest(TestCase):
    def compare(self, name, order):
        """How many products ran: plain, again, with products kept."""
        f, arrays, _, kwargs = FUNCTIONS[name]

        def g(*args):
            return ops.sin(f(*map(ops.sin, args), **kwargs))

        kept = remat(g, policy=RematPolicy("matmuls"))
        plain, once = gradients(g, arrays, order)
        found, ran = gradients(kept, arrays, order)
        self.assert_close(found, plain)
        return once, gradients(remat(g), arrays, order)[1], ran

    @parameterized.parameters(*sorted(FUNCTIONS))
    def test_its_products_run_once(self, name):
        once, again, ran = self.compare(name, 1)
        self.assertEqual(ran, once)
        self.assertEqual(again, once + FUNCTIONS[name][2])

    @parameterized.parameters(*sorted(FUNCTIONS))
    def test_gradient_of_the_gradient(self, name):
        _, again, ran = self.compare(name, 2)
        # The region runs again for either order.
        self.assertEqual(ran, again - 2 * FUNCTIONS[name][2])


def named(x, w):
    y = remat_name(ops.matmul(ops.sin(x), w), "mine")
    return ops.matmul(ops.tanh(y), w)


def named_in_two_layouts(x, w):
    x = ops.reshape(ops.concatenate([x, x]), (2, 4, 4))
    y = remat_name(ops.matmul(ops.sin(x), w), "mine")  # was reshaped
    z = ops.einsum("ab,bc->ca", ops.sin(w), w)  # was transposed
    return ops.matmul(ops.tanh(y), ops.tanh(remat_name(z, "mine")))


def named_later(x, w):
    y = ops.matmul(ops.sin(x), w)
    z = ops.matmul(ops.cos(x), w)
    return ops.tanh(remat_name(y, "mine")) * ops.tanh(z)


def named_sum(x, w):
    return ops.tanh(remat_name(ops.matmul(ops.sin(x), w) + 1, "mine"))


def a_nested_region(x, w):
    inner = remat(named, policy=RematPolicy("matmuls"))
    return ops.sin(inner(ops.matmul(ops.sin(x), w), w))


def an_error(x, w):
    with contextlib.suppress(Exception):
        ops.matmul(x, ops.zeros((3, 7)))
    return named(x, w)


def no_function_of_keras(x, w):
    return ops.sin(tf.matmul(ops.sin(x), w))


def everything(*args):
    return True


class RegionTest(TestCase):
    @parameterized.parameters(
        (named, "matmuls", 0),
        (named, ["mine"], 1),
        (named, everything, 0),
        (named_in_two_layouts, ["mine"], 1),
        (named_later, ["mine"], 1),
        (named_sum, ["mine"], 1),  # It is no result of a product.
        (a_nested_region, "matmuls", 0),
        (an_error, "matmuls", 0),
        (no_function_of_keras, "matmuls", 1),
    )
    def test_how_many_products_run_again(self, f, keep, again):
        plain, once = gradients(f, [SQUARE, SQUARE])
        kept = remat(f, policy=RematPolicy(keep))
        found, ran = gradients(kept, [SQUARE, SQUARE])
        self.assert_close(found, plain)
        self.assertEqual(ran, once + again)

    def test_a_function_that_calls_with_other_tensors(self):
        runs = []

        def f(x):
            runs.append(1)
            y = ops.sin(x)
            return ops.matmul(y, y if len(runs) == 1 else tf.identity(y))

        plain, once = gradients(f, [SQUARE])
        runs.clear()
        kept = remat(f, policy=RematPolicy("matmuls"))
        found, ran = gradients(kept, [SQUARE])
        self.assert_close(found, plain)
        self.assertEqual(ran, once + 1)  # It runs as it is.

    def test_a_tape_that_is_asked_twice(self):
        f = remat(named, policy=RematPolicy("matmuls"))
        x, w = tf.constant(SQUARE), tf.constant(SQUARE)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = f(x, w)
        first = tape.gradient(y, x)
        with executed() as ran:
            second = tape.gradient(y, x)
        self.assertAllClose(first, second)
        self.assertEqual(ran["MatMul"], 4)  # Two for each of the two.

    def test_only_what_can_be_given_back_is_held(self):
        refs = []

        def f(x, w):
            for y in (ops.tanh(x), ops.matmul(x, w)):
                refs.append(weakref.ref(y))
            return ops.sin(y)

        kept = remat(f, policy=RematPolicy(everything))
        x = tf.constant(SQUARE)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = kept(x, x)
        self.assertIsNone(refs[0]())
        self.assertIsNotNone(refs[1]())
        self.assertIsNotNone(tape.gradient(y, x))


class ModelTest(testing.TestCase):
    def results(self, keep, dtype):
        utils.set_random_seed(0)
        part = {"dtype": dtype}
        inputs = x = layers.Input(ROWS.shape[1:])
        x = layers.MultiHeadAttention(2, 4, dropout=0.1, **part)(x, x)
        x = layers.Dropout(0.3, seed=1, **part)(x)
        x = layers.Conv1D(4, 3, activation="gelu", **part)(x)
        x = layers.BatchNormalization(**part)(x)
        model = models.Model(inputs, layers.Dense(4, **part)(x))
        if keep is not None:
            model.remat = RematPolicy(keep)
        with executed() as ran:
            with tf.GradientTape() as tape:
                y = model(tf.constant(ROWS), training=True)
                loss = tf.reduce_sum(tf.sin(tf.cast(y, "float32")))
            weights = [v.value for v in model.trainable_variables]
            found = tape.gradient(loss, weights)
        found += [v.value for v in model.non_trainable_variables]
        return [x.numpy() for x in found], products_of(ran)

    @parameterized.product(
        dtype=("float32", "mixed_float16"), keep=("matmuls", NAMES)
    )
    def test_layers(self, dtype, keep):
        plain, once = self.results(None, dtype)
        found, ran = self.results(keep, dtype)
        _, twice = self.results("nothing", dtype)
        for a, b in zip(found, plain, strict=True):
            self.assertAllClose(a, b, rtol=1e-2, atol=1e-3)
        self.assertEqual(ran, once)
        self.assertGreater(twice, once + 5)
