"""Memory of a TensorFlow training step, by counting malloc."""

import ctypes
import gc
import os
import pathlib
import shutil
import subprocess
import sys

import graph_tensorflow
from measure import Usage
from measure import thinned

HERE = pathlib.Path(__file__).resolve().parent
LIBRARY = HERE.parent / "build" / "bench" / "malloc_log.so"


def prepare():
    """Starts this program again with the library that counts malloc."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if counting():
        return one_thread()
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        print("No C compiler was found, so peaks of memory are not measured.")
        return None
    build(compiler)
    environ = os.environ | {
        "LD_PRELOAD": str(LIBRARY),
        "TF_ENABLE_ONEDNN_OPTS": "0",
    }
    sys.stdout.flush()
    os.execve(sys.executable, sys.orig_argv, environ)


def build(compiler):
    source = HERE / "malloc_log.c"
    LIBRARY.parent.mkdir(parents=True, exist_ok=True)
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", LIBRARY, source]
    subprocess.run(command, check=True)


def counting():
    return LIBRARY.name in os.environ.get("LD_PRELOAD", "")


def one_thread():
    """Lets the executor run a graph in the same order each time."""
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)


def of_step(model, x, y):
    model.train_on_batch(x, y)  # traces, compiles, fills caches
    model.train_on_batch(x, y)
    if not counting():
        return Usage(None, None, None, [], None)
    peak, alive = watched(lambda: model.train_on_batch(x, y))
    eager = model.run_eagerly
    held, flops = (
        (None, None) if eager else graph_tensorflow.of_step(model, x, y)
    )
    return Usage(peak, held, flops, *thinned(alive, None))


def watched(run):
    """The most that malloc had handed out while `run` ran, and the course."""
    log = ctypes.CDLL(None)
    log.log_stop.restype = log.log_event.restype = ctypes.c_long
    log.log_count.restype = ctypes.c_long
    log.log_event.argtypes = [ctypes.c_long]
    gc.collect()
    log.log_start()
    run()
    peak = log.log_stop()
    return peak, [log.log_event(k) for k in range(log.log_count())]
