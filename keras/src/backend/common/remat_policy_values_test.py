"""Values that are unlike others: complex ones, and operations without any."""

import numpy as np
import pytest
from absl.testing import parameterized

from keras.src import ops
from keras.src import testing
from keras.src.backend.common.remat_op import remat
from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.backend.common.remat_test_utils import counted
from keras.src.backend.common.remat_test_utils import step
from keras.src.remat.name_op import remat_name

X = np.linspace(-1, 1, 12).reshape((3, 4)).astype("float32")


def has_a_dtype(op_name, value_name, shape, dtype):
    return np.dtype(dtype) != "float32"  # fails without one


def anything(op_name, value_name, shape, dtype):
    return True


def complex_products(x):
    z = ops.view_as_complex(ops.stack([ops.sin(x), ops.tanh(x)], axis=-1))
    z = remat_name(ops.matmul(z, ops.transpose(z)), "z")
    return ops.real(z) * ops.imag(z * z)


def with_an_operation_that_gives_nothing(x):
    return ops.sin(counted(ops.tanh(x)))


class OddValuesTest(testing.TestCase):
    @parameterized.product(
        f=(complex_products, with_an_operation_that_gives_nothing),
        keep=("nothing", "matmuls", ["z"], has_a_dtype, anything),
    )
    @pytest.mark.requires_trainable_backend
    def test_numbers(self, f, keep):
        region = remat(f, policy=RematPolicy(keep))
        expected = step(lambda x: ops.sum(f(x)), [X])
        found = step(lambda x: ops.sum(region(x)), [X])
        self.assertAllClose(found[0], expected[0], rtol=1e-5)
        self.assertAllClose(found[1][0], expected[1][0], rtol=1e-4, atol=1e-5)
