"""What a policy keeps on TensorFlow, where a graph has no order of its own."""

import numpy as np
import pytest

from keras.src import backend
from keras.src import testing
from keras.src.backend.common.remat_op import remat
from keras.src.backend.common.remat_policy import RematPolicy

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.skipif(
    backend.backend() != "tensorflow", reason="is about TensorFlow"
)

X = np.linspace(-1, 1, 24).reshape((4, 6)).astype("float32")
W = np.linspace(-1, 2, 36).reshape((6, 6)).astype("float32")


def reads(x, wanted, seen):
    """Whether `x` is made of `wanted`, or waits for it."""
    if x is wanted or x in seen:
        return x is wanted
    seen.add(x)
    before = [*(i.op for i in x.inputs), *x.control_inputs]
    return any(reads(op, wanted, seen) for op in before)


class OrderTest(testing.TestCase):
    def test_what_is_made_of_kept_values_waits_for_the_gradient(self):
        def f(x):
            return tf.sin(tf.sin(tf.matmul(x, W)))

        @tf.function
        def gradient(x, incoming):
            y = remat(f, policy=RematPolicy("matmuls"))(x)
            return tf.gradients(y, x, incoming)

        graph = gradient.get_concrete_function(X, X).graph
        arrives = graph.inputs[1].op
        ops = graph.get_operations()
        forward = [op for op in ops if op.type == "Sin"][:2]
        later = [op for op in ops if op.type in ("Sin", "Cos")]
        later = [op for op in later if op not in forward]
        self.assertGreater(len(later), 2)
        for op in later:
            self.assertTrue(reads(op, arrives, set()), op.name)
