import numpy as np
import pytest
from absl.testing import parameterized

import keras
from keras.src import backend
from keras.src import ops
from keras.src import testing


def conv(x, kernel):
    return ops.tanh(ops.conv(x, kernel, padding="same"))


def gradient_of_kernel(f):
    import jax

    return jax.grad(lambda kernel, x: (f(x, kernel) ** 2).sum())


@pytest.mark.skipif(backend.backend() != "jax", reason="ties are of JAX")
class TiedTest(testing.TestCase):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(0)
        self.x = rng.normal(size=(2, 4, 4, 3)).astype("float32")
        self.kernel = rng.normal(size=(3, 3, 3, 3)).astype("float32")

    def test_keep_functions_are_not_asked_about_ties(self):
        import jax

        asked = []

        def keep(op, name, shape, dtype):
            asked.append(op)
            return True

        policy = keras.RematPolicy(keep=keep)
        grad = gradient_of_kernel(keras.remat(conv, policy=policy))
        jax.jit(grad)(self.kernel, self.x)
        self.assertIn("conv", asked)
        self.assertNotIn("custom_jvp_call", asked)
        self.assertNotIn("optimization_barrier", asked)

    @parameterized.parameters("grad", "jvp", "jvp_of_grad", "vmap")
    def test_gradients_of_all_kinds_are_the_plain_ones(self, kind):
        import jax

        def derived(f):
            grad = gradient_of_kernel(f)
            values = self.kernel, self.x
            if kind == "jvp":
                return jax.jvp(f, values[::-1], values[::-1])[1]
            if kind == "jvp_of_grad":
                return jax.jvp(grad, values, values)[1]
            if kind == "vmap":
                kernels = np.stack([self.kernel, 2 * self.kernel])
                return jax.vmap(grad, (0, None))(kernels, self.x)
            return jax.jit(grad)(*values)

        again = derived(keras.remat(conv))
        self.assertAllClose(again, derived(conv), rtol=1e-4, atol=1e-4)

    def test_shard_map_with_a_kernel_that_devices_have_alike(self):
        import jax

        mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("batch",))
        spec = jax.sharding.PartitionSpec

        def on_devices(f):
            return jax.jit(
                jax.shard_map(
                    gradient_of_kernel(f),
                    mesh=mesh,
                    in_specs=(spec(), spec("batch")),
                    out_specs=spec(),
                )
            )

        plain = on_devices(conv)(self.kernel, self.x)
        again = on_devices(keras.remat(conv))(self.kernel, self.x)
        self.assertAllClose(again, plain)
