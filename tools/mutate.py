"""Shows that no seam is untested: without it, a test must fail.

A patch names its test by a header line, for example
`Test: torch keras/src/ops/core_test.py -k remat`.
"""

import os
import shlex
import subprocess
import sys

import gitcmd
import patchset
from upstream import ForkError


def passes(tree, backend, args):
    env = os.environ | {"KERAS_BACKEND": backend, "PYTHONPATH": str(tree)}
    options = ["-q", "-x", "-o", "addopts=", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *args],
        cwd=tree,
        env=env,
        capture_output=True,
        text=True,
    )
    if done.returncode > 2:
        raise ForkError(
            "A `Test:` line must name tests that exist. "
            f"Received: {shlex.join(args)}: {done.stdout[-500:]}"
        )
    return done.returncode == 0


def mutate(root, tree, only):
    """Reverses the patches one by one in `tree`, a fresh one."""
    survived, unnamed = [], []
    for name, file in patchset.read(root).items():
        if not name.endswith(".patch") or (only and name not in only):
            continue
        head = patchset.split(file.data)[0]
        named = patchset.field(head, "Test")
        if not named:
            # What only marks the fork, such as its version, has no effect.
            if "Inappropriate" not in patchset.field(head, "Upstream-Status"):
                unnamed.append(name)
            continue
        backend, *args = shlex.split(named)
        if not passes(tree, backend, args):
            raise ForkError(f"`{named}` must pass as it is ({name}).")
        gitcmd.git(tree, "apply", "--reverse", "-", data=file.data)
        alive = passes(tree, backend, args)
        gitcmd.git(tree, "apply", "-", data=file.data)
        verdict = "SURVIVED" if alive else "killed"
        print(f"mutate: {name} {verdict}", flush=True)
        survived += [name] * alive
    if unnamed:
        raise ForkError(
            "Each patch names a test that fails without it, in a line `Test:`. "
            f"Received: none in {', '.join(unnamed)}."
        )
    if survived:
        raise ForkError(
            "Without a patch its test must fail. Received: tests that pass "
            f"without {', '.join(survived)}. Test what the seam does."
        )
