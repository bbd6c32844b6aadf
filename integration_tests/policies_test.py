"""Policies reach the peaks of the engines' own, with the same arithmetic.

Measured by `benchmarks/policies.py` in a process of its own, as on TensorFlow
it starts anew with a library that counts malloc.
"""

import functools
import json
import os
import pathlib
import subprocess
import sys

import pytest

import keras

BENCHMARK = pathlib.Path(__file__).parents[1] / "benchmarks" / "policies.py"
BACKEND = keras.backend.backend()
# What jax.checkpoint with its own policies took for this model, in bytes.
JAX_BY_HAND = {"matmuls": 23050564, "matmuls_no_batch": 16533812}
KEEPS = tuple(JAX_BY_HAND)

pytestmark = pytest.mark.skipif(
    BACKEND in ("numpy", "openvino"), reason="this backend takes no gradients"
)


@functools.cache
def rows(folder):
    out = folder / "rows.json"
    command = [sys.executable, BENCHMARK, BACKEND, "--out", out]
    command += ["--blocks", "3", "--width", "64"]
    subprocess.run(command, check=True, env=dict(os.environ), timeout=300)
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    return rows(tmp_path_factory.getbasetemp())


@pytest.mark.parametrize("keep", KEEPS)
def test_peak(measured, keep):
    if BACKEND == "tensorflow":  # has no policies of its own
        if measured["plain"]["peak"] is None:
            pytest.skip("without a C compiler malloc is not counted")
        allowed = 1.2 * JAX_BY_HAND[keep]
    else:
        allowed = 1.02 * measured[f"{keep}, by hand"]["peak"]
    assert measured[keep]["peak"] <= allowed
    assert measured[f"{keep}, `model.remat`"]["peak"] <= allowed


@pytest.mark.skipif(
    BACKEND == "tensorflow", reason="TensorFlow does not count arithmetic"
)
@pytest.mark.parametrize("keep", KEEPS)
def test_arithmetic(measured, keep):
    by_hand = measured[f"{keep}, by hand"]["flops"]
    assert measured[keep]["flops"] <= 1.001 * by_hand
    assert measured[f"{keep}, `model.remat`"]["flops"] <= 1.001 * by_hand
