import functools
import warnings
from unittest import mock

import pytest
from absl.testing import parameterized

from keras.src import backend
from keras.src import layers
from keras.src import models
from keras.src import ops
from keras.src import testing
from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.remat import profile_policy
from keras.src.remat.measure import remat_report
from keras.src.remat.measure_test import decoder
from keras.src.remat.measure_test import decoder_batch
from keras.src.remat.name_op import remat_name
from keras.src.remat.profile_policy import Made
from keras.src.remat.report_test import printed

VALUE = 8 * 32 * 32 * 4  # Bytes of a decoder's value between its blocks.


def products_of_32(op_name, value_name, shape, dtype):
    return op_name in ("matmul", "conv") and shape[-1] == 32


def waves(op_name, value_name, shape, dtype):
    return any(word in op_name.lower() for word in ("sin", "exp"))


POLICIES = {
    "matmuls": RematPolicy(keep="matmuls"),
    "matmuls_no_batch": RematPolicy(keep="matmuls_no_batch"),
    "names": RematPolicy(keep=["dense/linear", "attention/context"]),
    "function": RematPolicy(keep=products_of_32),
    "other_operations": RematPolicy(keep=waves),
    "union": RematPolicy(keep=waves) | RematPolicy(keep=["dense/linear"]),
}


class Wave(layers.Layer):
    """Names what is no product, and a product twice."""

    def build(self, input_shape):
        self.kernel = self.add_weight(shape=(input_shape[-1], 32))

    def call(self, x):
        x = remat_name(ops.sin(ops.exp(-ops.square(x))), "wave")
        x = remat_name(ops.matmul(x, self.kernel), "product")
        return ops.tanh(remat_name(x, "twice"))


def waving():
    inputs = x = layers.Input((32, 32))
    for _ in range(4):
        x = layers.Dense(32)(Wave()(x))
    return models.Model(inputs, x)


@functools.cache
def measured(make, policy):
    model = make()
    model.remat = policy
    return reported(model)


def reported(model):
    name = f"keras.src.backend.{backend.backend()}.remat_measure.peak_bytes"
    with mock.patch(name, lambda *args: None):  # Slow, and not needed here.
        return remat_report(model, decoder_batch())


@pytest.mark.requires_trainable_backend
class KeptByNameTest(testing.TestCase):
    @parameterized.product(
        make=(decoder, waving), policy=sorted(POLICIES, key=str)
    )
    def test_prediction_is_near_the_measurement(self, make, policy):
        found = measured(make, POLICIES[policy])
        kept = sum(row.bytes for row in found.by_name.values())
        self.assertLess(kept, found.remat_bytes)
        for row in found.by_name.values():
            self.assertAllClose(row.predicted, row.bytes, rtol=0.1)
            self.assertEqual(row.values > 0, row.bytes > 0)
        self.assertAllClose(
            found.predicted_bytes - kept, found.remat_bytes - kept, rtol=0.25
        )

    def test_bytes_of_a_name(self):
        rows = measured(decoder, POLICIES["names"]).by_name
        context = rows["attention/context"]
        if backend.backend() == "torch":  # Kept with what its gradient needs.
            self.assertGreaterEqual(context.bytes, 3 * VALUE)
        else:
            self.assertEqual(context, (3, 3 * VALUE, 3 * VALUE))
        # The first product of each block is four times as wide.
        self.assertGreaterEqual(rows["dense/linear"].bytes, 2 * 4 * VALUE)
        self.assertEqual(set(rows), {"attention/context", "dense/linear"})

    def test_a_product_goes_by_its_name(self):
        rows = measured(waving, POLICIES["matmuls"]).by_name
        # A dense layer's may be all that a region has to return, or not.
        self.assertIn("product", rows)
        self.assertLessEqual(set(rows), {"product", "dense/linear"})
        rows = measured(waving, RematPolicy(keep=["twice", "wave"])).by_name
        self.assertEqual(set(rows), {"twice", "wave"})
        self.assertGreaterEqual(rows["twice"].bytes, 3 * VALUE)

    def test_other_operations_go_by_their_kind(self):
        rows = measured(waving, POLICIES["other_operations"]).by_name
        self.assertTrue(all(row.bytes for row in rows.values()))
        # What "sin" made has a name of its own, what "exp" made has none.
        words = " ".join(rows).lower()
        self.assertIn("exp", words)

    def test_a_name_that_no_value_has_is_a_row_of_zeros(self):
        model = decoder(1)
        model.remat = RematPolicy(keep=["dense/linear", "absent_in_report"])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            rows = reported(model).by_name
            reported(model)
        self.assertEqual(rows["absent_in_report"], (0, 0, 0))
        texts = [str(w.message) for w in caught]
        self.assertLen([t for t in texts if "absent_in_report" in t], 1)

    def test_nothing_kept_has_no_table(self):
        found = measured(decoder, RematPolicy())
        self.assertEqual(found.by_name, {})
        self.assertNotIn("kept by policies", printed(found.summary))

    def test_summary_has_the_table(self):
        text = printed(measured(decoder, POLICIES["names"]).summary)
        for word in ("kept by policies", "attention/context", "Values"):
            self.assertIn(word, text)

    def test_layers_with_policies_of_their_own(self):
        model = models.Sequential([layers.Input((32, 32)), Wave(), Wave()])
        model.layers[0].remat = RematPolicy(keep=["wave"])
        model.layers[1].remat = RematPolicy(keep=["product"])
        found = reported(model)
        self.assertEqual(found.by_name["wave"], (1, VALUE, None))
        self.assertEqual(found.by_name["product"], (1, VALUE, None))

    def test_arithmetic_that_a_name_spares(self):
        extra = {}
        for keep in ("nothing", "matmuls", ("product", "dense/linear")):
            model = waving()
            model.remat = RematPolicy(keep=keep)
            extra[keep] = model.remat_plan(8).predicted_extra_flops
        self.assertLess(extra["matmuls"], 0.5 * extra["nothing"])
        self.assertEqual(extra["product", "dense/linear"], extra["matmuls"])


class ReachedTest(testing.TestCase):
    def trace(self):
        """A product (0), what is made of it (1), and of that (2, 3)."""
        made = [
            ("matmul", ("a",), 100, ()),
            ("add", (), 1, (0, -1)),
            ("tanh", ("b",), 4, (1,)),
            ("mul", (), 1, (2, 1)),
        ]
        values = [
            Made(op, False, names, (2,), "float32", 8, flops, reads)
            for op, names, flops, reads in made
        ]
        return profile_policy.Trace(values, (2,), (3,))

    @parameterized.parameters(
        # What is kept spares what it is made of, if no one else reads that.
        ("matmuls", (2, 3), [0], 6),
        (["b"], (2,), [2], 0),
        (["b"], (2, 3), [2], 102),
        (["a", "b"], (2, 3), [0, 2], 2),
        (["a", "b"], (2,), [2], 0),
        (["absent"], (2, 3), [], 106),
    )
    def test_goes_back_to_kept_values(self, keep, ends, expected, again):
        trace = self.trace()
        keeps = profile_policy.cached_rule(RematPolicy(keep=keep))
        kept, arithmetic = profile_policy.reached(trace, ends, keeps)
        numbers = sorted(trace.values.index(v) for v in kept)
        self.assertEqual((numbers, arithmetic), (expected, again))

    def test_a_loop_comes_to_an_end(self):
        values = [
            Made(None, False, (), (), "", 0, 1, (-1, 1)),
            Made("add", False, (), (), "float32", 8, 1, (0,)),
        ]
        trace = profile_policy.Trace(values, (1,), ())
        keeps = profile_policy.cached_rule(RematPolicy(keep="matmuls"))
        self.assertEqual(profile_policy.reached(trace, (1,), keeps), ([], 2))
