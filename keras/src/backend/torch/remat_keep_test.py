"""What a policy keeps on torch, where values may be changed in place."""

import threading
import weakref

import numpy as np
import pytest
from absl.testing import parameterized

from keras.src import backend
from keras.src import testing
from keras.src.backend.common.remat_op import remat
from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.remat.name_op import remat_name

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    backend.backend() != "torch", reason="is about torch"
)

X = np.linspace(-1, 1, 24).reshape((4, 6)).astype("float32")
W = np.linspace(-1, 2, 36).reshape((6, 6)).astype("float32")


def changed(x, w):
    y = torch.mm(x, w)
    y.add_(1.0)
    return torch.sin(y.tanh_())


def named_after_a_change(x, w):
    y = torch.mm(x, w)
    y.add_(1.0)
    y = remat_name(y, "a")
    return torch.sin(torch.tanh(y) * y)


def named_before_a_change(x, w):
    y = remat_name(torch.mm(x, w), "a")
    y.add_(1.0)
    return torch.sin(y) * y


def a_view_is_changed(x, w):
    y = torch.mm(x, w)
    y[:, :3].add_(5.0)
    return torch.sin(y) * y


def a_view_is_named(x, w):
    y = torch.tanh(remat_name(torch.mm(x, w)[:, :3].t(), "a"))
    return torch.sin(y) * y


def one_of_several_results_is_named(x, w):
    y = remat_name(torch.max(torch.mm(x, w), dim=1)[0], "a")
    return torch.sin(torch.tanh(y) * y)


def a_hidden_view_is_changed(x, w):
    y = torch.matmul(x[None], w)  # a view that its operation does not declare
    return torch.sin(y.add_(1.0)) * y


def an_input_is_named(x, w):
    return torch.sin(torch.mm(remat_name(x, "a"), w))


def anything(op_name, value_name, shape, dtype):
    return True


FUNCTIONS = (
    changed,
    named_after_a_change,
    named_before_a_change,
    a_view_is_changed,
    a_view_is_named,
    one_of_several_results_is_named,
    a_hidden_view_is_changed,
    an_input_is_named,
)
POLICIES = {
    "matmuls": RematPolicy("matmuls"),
    "name": RematPolicy(["a"]),
    "function": RematPolicy(anything),
    "offload": RematPolicy("matmuls", offload=["a"]),
}


def gradients(f, times=1):
    x = torch.tensor(X, requires_grad=True)
    w = torch.tensor(W, requires_grad=True)
    loss = torch.sum(f(x, w))
    for _ in range(times):
        loss.backward(retain_graph=True)
    return [x.grad.numpy(), w.grad.numpy()]


def operations(f):
    """The names of the operations that a step with `f` runs."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    seen = []
    with Watch():
        gradients(f)
    return seen


class InPlaceTest(testing.TestCase):
    @parameterized.product(f=FUNCTIONS, policy=sorted(POLICIES), times=(1, 2))
    def test_gradients(self, f, policy, times):
        found = gradients(remat(f, policy=POLICIES[policy]), times)
        for a, b in zip(found, gradients(f, times)):
            self.assertAllClose(a, b, atol=1e-5)

    @parameterized.parameters(
        (changed, "matmuls"),
        (named_before_a_change, "name"),
        (a_view_is_changed, "matmuls"),
        (a_view_is_named, "name"),
    )
    def test_what_is_kept_does_not_run_again(self, f, policy):
        plain = operations(f).count("mm")
        found = operations(remat(f, policy=POLICIES[policy])).count("mm")
        again = operations(remat(f)).count("mm")
        self.assertEqual((found, again), (plain, plain + 1))

    def test_values_that_are_not_kept_are_not_held(self):
        alive = []

        def f(x, w):
            first = torch.mm(x, w)
            memory = weakref.ref(first.untyped_storage())
            y = remat_name(torch.sin(first), "a")
            del first
            alive.append(memory() is not None)
            return torch.tanh(y)

        x, w = torch.tensor(X, requires_grad=True), torch.tensor(W)
        remat(f, policy=POLICIES["name"])(x, w)
        self.assertEqual(alive, [False])


class RandomTest(testing.TestCase):
    """Draws of torch's own generator, some of them kept."""

    def f(self, x, w):
        a = remat_name(torch.rand_like(x), "a")
        b = torch.rand((4, 1))
        y = torch.nn.functional.dropout(torch.sin(torch.mm(x * a, w)), 0.5)
        return torch.tanh(y * a * b) * torch.sin(x * b)

    @parameterized.named_parameters(
        ("named", ["a"]),
        ("all", anything),
        ("matrices", lambda op, name, shape, dtype: shape[-1] > 1),
        ("draws", lambda op, name, shape, dtype: "rand" in op),
    )
    def test_a_kept_draw_moves_the_generator(self, keep):
        found = []
        for f in (self.f, remat(self.f, policy=RematPolicy(keep))):
            torch.manual_seed(3)
            found.append([*gradients(f), torch.rand(()).numpy()])
        for a, b in zip(*found):
            self.assertAllClose(a, b, atol=1e-5)


class LetGoTest(testing.TestCase):
    """Kept values live no longer than a backward pass may want them."""

    def test_results_that_no_gradient_reads_are_not_held(self):
        alive = []

        def f(x, w):
            y = torch.mm(torch.sin(torch.mm(x, w)), w)
            alive.append(weakref.ref(y.untyped_storage()))
            return y.sum()

        x, w = torch.tensor(X, requires_grad=True), torch.tensor(W)
        loss = remat(f, policy=POLICIES["matmuls"])(x, w)
        self.assertIsNone(alive[0]())
        loss.backward()

    def test_they_are_taken_by_the_only_backward_pass(self):
        alive = []

        def f(x, w):
            y = torch.mm(x, w)
            if not alive:
                alive.append(weakref.ref(y.untyped_storage()))
            y = y * 1.0
            y.register_hook(lambda g: alive.append(alive[0]() is None))
            return torch.sin(y)

        x, w = torch.tensor(X, requires_grad=True), torch.tensor(W)
        remat(f, policy=POLICIES["matmuls"])(x, w).sum().backward()
        self.assertTrue(alive[-1])

    @parameterized.parameters("matmuls", "function")
    def test_two_gradients_that_share_nothing(self, policy):
        def f(x):
            y = torch.sin(torch.mm(x, x.t()))
            z = torch.exp(torch.sin(torch.mm(x, x.t() + 1.0)))
            return torch.tanh(y) * y, z

        found = []
        for g in (f, remat(f, policy=POLICIES[policy])):
            x = torch.tensor(X, requires_grad=True)
            found.append([torch.autograd.grad(y.sum(), x)[0] for y in g(x)])
        for a, b in zip(*found):
            self.assertAllClose(a, b, atol=1e-5)


class ThreadTest(testing.TestCase):
    def test_regions_of_two_threads_do_not_meet(self):
        barrier = threading.Barrier(2, timeout=30)
        found = {}

        def f(x, w):
            barrier.wait()
            y = remat_name(torch.sin(torch.mm(x, w)), "a")
            barrier.wait()
            return torch.tanh(y) * y

        def work(i):
            found[i] = gradients(remat(f, policy=POLICIES["name"]))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        self.assertLen(found, 2)
        barrier = threading.Barrier(1)
        expected = gradients(f)
        for i in range(2):
            for a, b in zip(found[i], expected):
                self.assertAllClose(a, b, atol=1e-5)
