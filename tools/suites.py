#!/usr/bin/env python3
"""Runs a suite of tests on one backend, with pytest.

    suites.py ours BACKEND             our tests, in build/tree
    suites.py upstream BACKEND [PATH]  upstream's tests, in build/tree; without
                                       paths those beside the files we patch
    suites.py smoke BACKEND            integration tests, the notebook and the
                                       cookbook, on the installed wheel
    suites.py wheel BACKEND            the same and our tests, on the wheel

What follows `--` goes to pytest.
"""

import argparse
import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import patchset

ROOT = pathlib.Path(__file__).resolve().parent.parent
BACKENDS = ("jax", "tensorflow", "torch", "numpy", "openvino")
REPLACED_TEST = "keras/src/backend/common/remat_test.py"
NO_TESTS = 5  # pytest's exit status


def ours():
    return [x for x in patchset.read(ROOT) if x.endswith("_test.py")]


def beside_patches():
    """Upstream's tests of the files that we patch or replace."""
    names = [x for x in patchset.read(ROOT) if x.endswith(".py.patch")]
    names = [x.removesuffix(".patch") for x in names]
    names += patchset.replaced(ROOT)
    tests = [x.removesuffix(".py") + "_test.py" for x in sorted(names)]
    return [x for x in tests if (ROOT / "build/tree" / x).exists()]


def pytest(folder, backend, args, path=None):
    env = os.environ | {
        "KERAS_BACKEND": backend,
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "PYTHONPATH": str(path or ""),
    }
    options = ["-q", "-o", "addopts=", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, *args]
    print(f"{backend}: pytest {' '.join(args)[:200]}", flush=True)
    return subprocess.run(command, cwd=folder, env=env).returncode


def in_tree(backend, paths, args):
    if not paths:
        print(f"{backend}: no tests yet")
        return 0
    tree = ROOT / "build" / "tree"
    return pytest(tree, backend, [*paths, *args], path=tree)


def refuse_other_keras():
    """tensorflow brings a plain Keras, on which these tests prove nothing."""
    wheels = list((ROOT / "build" / "dist").glob("keras-*.whl"))
    built = [x.name.split("-")[1] for x in wheels]
    installed = importlib.metadata.version("keras")
    if built != [installed]:
        sys.exit(
            "Tests of the wheel need the wheel. Received: keras "
            f"{installed} is installed, {built} was built. "
            "Run `rm -f .venv/.have-wheel` and try again."
        )


def on_wheel(backend, modules, args):
    """Runs where no `keras` folder can hide the installed wheel."""
    refuse_other_keras()
    names = [x.removesuffix(".py").replace("/", ".") for x in modules]
    folders = [ROOT / name for name in ("integration_tests", "examples")]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(ROOT / "devtree" / "conftest.py", folder)
        plugin = ["-p", "conftest"]
        code = pytest(folder, backend, [*plugin, "--pyargs", *names, *args])
        if code:
            return code
        rootdir = ["--rootdir", folder, "-c", os.devnull]
        args = [*plugin, *rootdir, *map(str, folders), *args]
        code = pytest(folder, backend, args)
        return 0 if code == NO_TESTS else code


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    suites = ("ours", "upstream", "smoke", "wheel")
    parser.add_argument("suite", choices=suites)
    parser.add_argument("backend", choices=BACKENDS)
    parser.add_argument("paths", nargs="*")
    own, _, extra = " ".join(sys.argv[1:]).partition(" -- ")
    options = parser.parse_args(own.split())
    extra = extra.split()
    if options.suite == "ours":
        return in_tree(options.backend, options.paths or ours(), extra)
    if options.suite == "upstream":
        paths = options.paths or beside_patches()
        return in_tree(options.backend, paths, extra)
    modules = [REPLACED_TEST]
    if options.suite == "wheel":
        modules += ours()
    return on_wheel(options.backend, modules, extra)


if __name__ == "__main__":
    sys.exit(main())
