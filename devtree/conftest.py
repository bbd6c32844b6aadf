"""What Keras's tests need from a conftest: markers and `skip_if_backend`."""

import os
import pathlib

# Some tests switch JAX to 64 bits and expect Keras's 32-bit defaults to stay.
os.environ.setdefault("JAX_DEFAULT_DTYPE_BITS", "32")

try:
    # In one process with TensorFlow, torch must be loaded before it.
    import torch  # noqa: F401
except ImportError:
    torch = None

import pytest  # noqa: E402

import keras  # noqa: E402
from keras.src import backend  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
NOT_TRAINABLE = ("numpy", "openvino")

if (HERE / "keras" / "src").is_dir():
    found = pathlib.Path(keras.src.__file__).resolve()
    if HERE not in found.parents:
        raise ImportError(
            "Tests in a tree must test that tree. Received: keras from "
            f"{found.parent}. Run pytest in {HERE}."
        )


def pytest_configure(config):
    for row in (
        "requires_trainable_backend: needs a backend that has gradients",
        "multi_device: needs more than one device",
    ):
        config.addinivalue_line("markers", row)


def pytest_collection_modifyitems(config, items):
    name = backend.backend()
    if name not in NOT_TRAINABLE:
        return
    skip = pytest.mark.skip(reason=f"{name} cannot train")
    for item in items:
        if item.get_closest_marker("requires_trainable_backend"):
            item.add_marker(skip)


def skip_if_backend(name, reason):
    """Decorates a test that cannot run on backend `name`."""
    return pytest.mark.skipif(backend.backend() == name, reason=reason)
