import numpy as np
from absl.testing import parameterized

from keras.src import testing
from keras.src.backend.common.remat_checks import KEEP_WORDS
from keras.src.backend.common.remat_checks import parse_bytes
from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.saving import register_keras_serializable


@register_keras_serializable("remat_policy_test")
def keep_large(op_name, value_name, shape, dtype):
    return len(shape) > 1


class RematPolicyTest(testing.TestCase):
    @parameterized.named_parameters(
        ("keep", {"keep": "matmul"}, [repr(w) for w in KEEP_WORDS]),
        ("keep_type", {"keep": 3}, [repr(w) for w in KEEP_WORDS]),
        ("keep_empty", {"keep": []}, [repr(w) for w in KEEP_WORDS]),
        ("offload", {"offload": "host"}, ["bool", "list of names"]),
        ("budget", {"memory_budget": "much"}, ["2GiB", "auto"]),
        ("budget_zero", {"memory_budget": 0}, ["2GiB", "auto"]),
        ("budget_share", {"memory_budget": 1.5}, ["2GiB", "auto"]),
        ("every", {"every": 0}, ["`every`", "at least 1"]),
        ("every_bool", {"every": True}, ["`every`", "at least 1"]),
        ("levels", {"levels": 1.5}, ["`levels`", "at least 1"]),
    )
    def test_a_wrong_value_lists_the_valid_ones(self, kwargs, valid):
        with self.assertRaises(ValueError) as caught:
            RematPolicy(**kwargs)
        for text in [*valid, "Received: "]:
            self.assertIn(text, str(caught.exception))

    @parameterized.named_parameters(
        ("default", {}),
        ("word", {"keep": "matmuls", "every": 2, "levels": 3}),
        ("names", {"keep": ["a", "b"], "offload": ["b"]}),
        ("offload", {"keep": "matmuls", "offload": True}),
        ("function", {"keep": keep_large}),
        ("mixture", {"keep": ["a", "matmuls", keep_large]}),
        ("budget", {"memory_budget": "2GiB"}),
        ("share", {"memory_budget": 0.5}),
    )
    def test_config_round_trip(self, kwargs):
        policy = RematPolicy(**kwargs)
        copy = RematPolicy.from_config(policy.get_config())
        self.assertEqual(copy, policy)
        self.assertEqual(hash(copy), hash(policy))
        self.assertEqual(repr(copy), repr(policy))

    def test_policies_differ_by_each_argument(self):
        policies = {
            RematPolicy(),
            RematPolicy(keep="matmuls"),
            RematPolicy(keep=["a"]),
            RematPolicy(offload=True),
            RematPolicy(memory_budget=1000),
            RematPolicy(every=2),
            RematPolicy(levels=2),
        }
        self.assertLen(policies, 7)

    def test_a_union_keeps_what_either_keeps(self):
        both = RematPolicy(keep=["a"]) | RematPolicy(keep="matmuls", every=2)
        self.assertTrue(both.keeps("name", name="a"))
        self.assertTrue(both.keeps("matmul"))
        self.assertFalse(both.keeps("name", name="b"))
        self.assertFalse(both.keeps("tanh", spec=lambda: ((2,), "float32")))
        self.assertEqual(both.every, 2)

    @parameterized.named_parameters(
        ("nothing", "nothing", []),
        ("matmuls", "matmuls", ["matmul", "scores", "conv", "attention"]),
        ("no_batch", "matmuls_no_batch", ["matmul", "conv"]),
    )
    def test_words(self, word, expected):
        policy = RematPolicy(keep=word)
        ops_and_batch = {
            "matmul": ("matmul", False),
            "scores": ("matmul", True),
            "conv": ("conv", False),
            "attention": ("attention", False),
            "tanh": ("tanh", False),
        }
        found = [n for n, args in ops_and_batch.items() if policy.keeps(*args)]
        self.assertEqual(found, expected)

    @parameterized.parameters(True, np.True_, np.bool_(False))
    def test_a_function_may_return_a_bool_of_numpy(self, kept):
        policy = RematPolicy(keep=lambda *args: kept)
        found = policy.keeps("tanh", spec=lambda: ((2,), "float32"))
        self.assertIs(found, bool(kept))

    def test_a_function_must_return_a_bool(self):
        policy = RematPolicy(keep=lambda *args: 1)
        with self.assertRaisesRegex(ValueError, "must return a bool"):
            policy.keeps("tanh", spec=lambda: ((2,), "float32"))

    @parameterized.parameters(
        ("512", 512), ("2KB", 2000), ("2KiB", 2048), ("1.5 MiB", 3 * 2**19)
    )
    def test_bytes(self, text, expected):
        self.assertEqual(parse_bytes(text), expected)

    def test_a_negative_number_of_bytes(self):
        with self.assertRaisesRegex(ValueError, "memory_budget"):
            RematPolicy(memory_budget="-1GB")

    @parameterized.parameters((np.int64(2**20), int), (np.float32(0.5), float))
    def test_numbers_of_numpy(self, budget, kind):
        policy = RematPolicy(memory_budget=budget)
        self.assertEqual(policy.memory_budget, budget)
        self.assertIs(type(policy.get_config()["memory_budget"]), kind)

    @parameterized.parameters("", "GiB", "2TiBB", "two")
    def test_what_is_no_number_of_bytes(self, text):
        with self.assertRaisesRegex(ValueError, "memory_budget"):
            RematPolicy(memory_budget=text)
