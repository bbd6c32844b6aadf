"""More than one device: equal to plain, and no communication in vain.

Each case runs in processes of its own, which end at a time limit, so that a
collective that waits for ever stops one test and nothing else.
"""

import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

import pytest

import keras

WORKERS = pathlib.Path(__file__).resolve().parent / "workers"
LIMIT = 400  # seconds; they need some 40 on a free core
HELD_ROWS = {"data": [8 // 4, 32], "model": [8 // 2, 32]}


def only(backend):
    return pytest.mark.skipif(
        keras.backend.backend() != backend, reason=f"about {backend}"
    )


def run(script, *arguments):
    """The reports of one or more processes that run side by side."""
    command = [sys.executable, str(WORKERS / script)]
    env = os.environ | {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    started = []
    try:
        for extra in arguments:
            out = tempfile.TemporaryFile("w+")
            process = subprocess.Popen(
                [*command, *extra], stdout=out, stderr=out, env=env
            )
            started.append((process, out))
        return [finish(*x) for x in started]
    finally:
        for process, _ in started:
            process.kill()


def finish(process, out):
    process.wait(LIMIT)
    out.seek(0)
    text = out.read()
    assert process.returncode == 0, text[-4000:]
    lines = [x for x in text.splitlines() if x.startswith("RESULT ")]
    assert lines, text[-4000:]
    return [json.loads(x.removeprefix("RESULT ")) for x in lines]


def both_ranks(script):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    return run(script, [address, "0"], [address, "1"])


def assert_near(*distances):
    assert max(distances) < 2e-3, distances


@pytest.fixture(scope="module", params=["data", "model"])
def on_jax(request):
    (reports,) = run("jax_devices.py", [request.param])
    return request.param, reports


@pytest.fixture(scope="module")
def on_torch():
    return both_ranks("torch_processes.py")


@pytest.fixture(scope="module")
def mirrored():
    (reports,) = run("tf_mirrored.py", [])
    return reports


@only("jax")
class TestJaxDevices:
    """`keras.distribution` on four devices."""

    def test_equal_to_plain_and_to_one_device(self, on_jax):
        for case in on_jax[1]:
            assert_near(case["to_plain"], case["to_single"])
            for losses in zip(*case["losses"]):
                assert losses == pytest.approx([losses[0]] * 3, rel=1e-4)

    def test_variables_keep_their_shardings(self, on_jax):
        for case in on_jax[1]:
            plain, ours = case["shardings"]
            assert plain == ours
            assert any("batch" in s or "model" in s for s in plain)

    def test_inputs_of_regions_stay_sharded(self, on_jax):
        name, reports = on_jax
        for case in reports:
            # Other sizes are of weights: the batch has 8 rows.
            batches = [x for x in case["held"] if x[0] in (2, 4, 8)]
            assert HELD_ROWS[name] in batches, case["held"]
            assert all(x[0] == HELD_ROWS[name][0] for x in batches)

    def test_no_more_communication_than_the_second_run_needs(self, on_jax):
        for case in on_jax[1]:
            plain, ours = case["plain"], case["remat"]
            assert plain and set(ours) <= set(plain), (plain, ours)
            for kind in ours:
                again = case["forward"].get(kind, [0, 0])
                for i in range(2):  # how many, how many bytes
                    assert ours[kind][i] <= plain[kind][i] + again[i]

    def test_none_is_added_where_regions_need_none(self, on_jax):
        name, reports = on_jax
        case = next(x for x in reports if "layer" in x["case"])
        assert case["remat"] == case["plain"], name


@only("jax")
def test_two_jax_processes():
    for (case,) in both_ranks("jax_processes.py"):
        assert case["devices"] == [2, 1]
        assert_near(case["to_plain"], case["to_single"])


@only("torch")
class TestTorchProcesses:
    def test_data_parallel(self, on_torch):
        """A weight that is "ready twice" would be an error of torch's."""
        for reports in on_torch:
            cases = [x for x in reports if x["case"] != "fully_shard"]
            assert len(cases) == 5
            for case in cases:
                assert_near(case["to_single"])
                assert_runs_again(case["found"])

    def test_fully_shard(self, on_torch):
        for reports in on_torch:
            case = reports[-1]
            assert case["case"] == "fully_shard"
            assert [32, 32] in case["sharded"]  # half of a kernel
            assert_runs_again(case["found"])


@only("tensorflow")
class TestMirrored:
    def test_equal_to_one_device(self, mirrored):
        assert mirrored[0]["replicas"] == 2
        assert_near(mirrored[0]["to_single"])

    def test_equal_to_plain(self, mirrored):
        assert len(mirrored) == 5
        for case in mirrored[1:]:
            assert_runs_again(case["found"])


def assert_runs_again(found):
    """More runs of blocks than plain, and the same numbers."""
    for ours, plain, far in found:
        assert ours > plain
        assert_near(far)
