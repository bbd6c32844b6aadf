"""Builds the wheel from a clean copy of the tree and compares what is in it."""

import io
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile

import gitcmd
import patchset
from upstream import ForkError

# Wheels made from one tree are equal: the oldest time that a zip can hold.
EPOCH = "315532800"


def build(root, tree):
    """Makes the wheel in build/dist, unless it is there already."""
    state = gitcmd.snapshot(tree)
    if patchset.unexported(tree):
        print("build: the tree holds edits that no export has saved")
    dist = pathlib.Path(root, "build", "dist")
    dist.mkdir(parents=True, exist_ok=True)
    stamp = dist / "made-from"
    if stamp.exists() and stamp.read_text() == state:
        if list(dist.glob("keras-*.whl")):
            return
    with tempfile.TemporaryDirectory(dir=dist) as scratch:
        source = pathlib.Path(scratch, "keras")
        copy(tree, state, source)
        for name in patchset.devtree(root):
            source.joinpath(name).unlink(missing_ok=True)
        made = pip_wheel(source, scratch)
        compare(made, source)
        stamp.unlink(missing_ok=True)
        for old in dist.glob("keras-*.whl"):
            old.unlink()
        os.replace(made, dist / made.name)
        stamp.write_text(state)
    print(f"build: build/dist/{made.name}")


def copy(tree, state, folder):
    """Copies a snapshot, so that nothing a build leaves enters the tree."""
    packed = io.BytesIO(gitcmd.git(tree, "archive", "--format=tar", state))
    with tarfile.open(fileobj=packed) as tar:
        tar.extractall(folder, filter="data")


def pip_wheel(source, folder):
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    done = subprocess.run(
        [*command, "--wheel-dir", folder, str(source)],
        capture_output=True,
        text=True,
        env=os.environ | {"SOURCE_DATE_EPOCH": EPOCH},
    )
    made = list(pathlib.Path(folder).glob("keras-*.whl"))
    if done.returncode or len(made) != 1:
        raise ForkError(
            "`pip wheel` must make one wheel of the tree. Received: "
            f"{(done.stderr or done.stdout).strip()[-2000:]}. It needs the "
            "registry, for setuptools."
        )
    return made[0]


def expected(source):
    """Returns {name in the wheel: bytes}: keras/api becomes the root."""
    files = {}
    for path in pathlib.Path(source, "keras").rglob("*.py"):
        name = path.relative_to(source).as_posix()
        if name.startswith(("keras/api/", "keras/src/")):
            name = name.replace("keras/api/", "keras/", 1)
            files[name] = path.read_bytes()
    return files


def compare(wheel, source):
    """Every file of the tree is in the wheel, unaltered, and nothing else."""
    want = expected(source)
    with zipfile.ZipFile(wheel) as packed:
        names = [x for x in packed.namelist() if ".dist-info/" not in x]
        got = {x: packed.read(x) for x in names}
    wrong = sorted(
        x for x in want.keys() | got.keys() if want.get(x) != got.get(x)
    )
    if wrong:
        raise ForkError(
            "The wheel must hold the tree's files and no others. Received: "
            f"{len(wrong)} that are missing, extra or altered, among them "
            f"{wrong[:5]}. A folder without __init__.py is left out."
        )
    print(f"build: {len(got)} files, all as in the tree")
