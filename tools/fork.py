#!/usr/bin/env python3
"""Builds Keras from upstream's archive and our patch set, and back again.

    fork.py checkout [--force]         make build/tree from the repository
    fork.py status                     list the patches and what is unexported
    fork.py export                     write build/tree back to the repository
    fork.py check                      prove that the repository keeps its rules
    fork.py build                      make the wheel from build/tree
    fork.py rebase VERSION [--dry-run] move the patch set to another release
    fork.py seams                      write the table of docs/upstream.md
    fork.py pr CLONE                   make a branch on a clone of Keras
    fork.py mutate [PATCH ...]         show that each patch has a failing test

Needs Python 3.11.4, pip and git, nothing else. How the patch set works is in
CONTRIBUTING.md.
"""

import argparse
import contextlib
import fcntl
import os
import pathlib
import shutil
import signal
import sys
import tempfile

import checker
import exporting
import gitcmd
import mutate
import patchset
import seams
import upgrade
import upstream
import wheel
from upstream import ForkError

ROOT = pathlib.Path(__file__).resolve().parent.parent


def tree_of(root):
    return pathlib.Path(root, "build", "tree")


@contextlib.contextmanager
def locked(root, command):
    """Lets one command at a time work in build/.

    But `mutate`: it runs tests for minutes, in a scratch folder of its own.
    """
    os.makedirs(pathlib.Path(root, "build"), exist_ok=True)
    with open(pathlib.Path(root, "build", "lock"), "w") as lock:
        if command != "mutate":
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def scratch(root):
    """A new folder in build/ that is gone afterwards, whatever happens."""
    folder = tempfile.mkdtemp(
        prefix="scratch-", dir=pathlib.Path(root, "build")
    )
    try:
        yield pathlib.Path(folder, "tree")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def install(new, tree):
    """Puts `new` in the place of `tree` by renaming, never by copying."""
    old = tree.with_name("tree.old")
    shutil.rmtree(old, ignore_errors=True)
    if tree.exists():
        os.rename(tree, old)
    os.rename(new, tree)
    shutil.rmtree(old, ignore_errors=True)


def rescue(tree):
    """Brings the tree back if `install` was interrupted between its renames."""
    old = tree.with_name("tree.old")
    if old.exists() and not tree.exists():
        os.rename(old, tree)


def made_tree(root, verb):
    """Returns build/tree and what it remembers; refuses what is not ours."""
    tree = tree_of(root)
    rescue(tree)
    facts = patchset.noted(tree)
    if facts is None:
        raise ForkError(
            f"`{verb}` needs a tree that `checkout` made. Received: {tree}, "
            f"{'without its notes' if tree.exists() else 'missing'}. "
            "Run `make tree`."
        )
    if patchset.busy(tree):
        raise ForkError(
            f"`{verb}` must wait for the rebase in build/tree. Finish it: "
            "`git -C build/tree rebase --continue` (or `--abort`)."
        )
    return tree, facts


def checkout(root, force=False):
    tree = tree_of(root)
    rescue(tree)
    if tree.exists() and not force:
        _, facts = made_tree(root, "checkout")
        refuse_to_lose(tree)
        if facts == patchset.remember(root):
            print("build/tree is up to date.")
            return
    with scratch(root) as new:
        patchset.assemble(root, new)
        install(new, tree)
    version = upstream.read_pin(root).version
    print(f"build/tree: Keras {version} with the patch set")


def refuse_to_lose(tree):
    edits = patchset.unexported(tree)
    if edits:
        raise ForkError(
            "A new tree may not overwrite work. Received: edits in build/tree "
            f"that no export has saved: {exporting.some(edits)}. Run "
            "`make export`, or throw them away: "
            "`python tools/fork.py checkout --force`."
        )


def export(root):
    tree, facts = made_tree(root, "export")
    exporting.export(root, tree, facts)
    seams.refresh(root)


def status(root):
    total = [0, 0]
    for name, file in patchset.read(root).items():
        if not name.endswith(".patch"):
            continue
        head, diff = patchset.split(file.data)
        added, removed = checker.size(diff)
        total = [total[0] + added, total[1] + removed]
        what = patchset.field(head, "Purpose")
        state = patchset.field(head, "Upstream-Status")
        print(f"+{added:<3}-{removed:<3}{name}\n        {what} [{state}]")
    own = [x for x in patchset.read(root) if not x.endswith(".patch")]
    print(f"+{total[0]} -{total[1]} in patches; {len(own)} files of our own")
    tree = tree_of(root)
    if patchset.noted(tree) is None:
        print("build/tree: not made yet (make tree)")
        return
    for path, letter in patchset.unexported(tree).items():
        print(f"unexported {letter} {path}")
    if patchset.noted(tree) != patchset.remember(root):
        print("build/tree is older than the repository (make tree)")


def check(root):
    broken = fresh(root, lambda *x: list(checker.problems(*x)))
    for row in broken:
        print(f"check: {row}")
    if broken:
        raise ForkError(
            f"The repository breaks its rules: {len(broken)} times."
        )
    patches = [
        checker.size(patchset.split(file.data)[1])
        for name, file in patchset.read(root).items()
        if name.endswith(".patch")
    ]
    added, removed = (sum(x) for x in zip((0, 0), *patches))
    print(f"check: {len(patches)} patches, +{added} -{removed}: all rules kept")


def fresh(root, work, *args):
    """Calls `work` on a tree of the repository that is gone afterwards."""
    with scratch(root) as tree:
        patchset.assemble(root, tree)
        return work(root, tree, *args)


def rebase(root, version, dry_run=False):
    tree = tree_of(root)
    if tree.exists() and not dry_run:
        made_tree(root, "rebase")
        refuse_to_lose(tree)
    with scratch(root) as new:
        patchset.assemble(root, new)
        pin, conflicts = upgrade.rebase(root, new, version)
        if dry_run:
            report(root, new, pin, conflicts)
            return
        install(new, tree)
    if conflicts:
        raise ForkError(
            f"A rebase must end without conflicts. Received: {conflicts} "
            f"differ in {pin.version}. In build/tree: edit them, `git add` "
            "them, `git rebase --continue`; then `make export`. Or `git "
            "rebase --abort` and `make tree`: nothing has changed."
        )
    exporting.export(root, tree, patchset.noted(tree))
    print(f"rebase: the patch set stands on {pin.version}; run `make check`")


def report(root, tree, pin, conflicts):
    if conflicts:
        raise ForkError(f"dry run: {pin.version} conflicts in {conflicts}.")
    for row in checker.stand_ins(root, tree, patchset.read(root)):
        print(f"dry run: {row}")
    print(f"dry run: the patch set applies to {pin.version}")


def build(root):
    tree, _ = made_tree(root, "build")
    wheel.build(root, tree)


def parser():
    top = argparse.ArgumentParser(
        prog="fork.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--root", type=pathlib.Path, default=ROOT)
    commands = top.add_subparsers(dest="command", required=True)
    for name in COMMANDS:
        commands.add_parser(name)
    chosen = commands.choices
    chosen["checkout"].add_argument("--force", action="store_true")
    chosen["rebase"].add_argument("version", help="a version, or `latest`")
    chosen["rebase"].add_argument("--dry-run", action="store_true")
    chosen["pr"].add_argument("clone", type=pathlib.Path)
    chosen["mutate"].add_argument("patches", nargs="*")
    return top


COMMANDS = {
    "checkout": lambda o: checkout(o.root, o.force),
    "status": lambda o: status(o.root),
    "export": lambda o: export(o.root),
    "check": lambda o: check(o.root),
    "build": lambda o: build(o.root),
    "seams": lambda o: seams.refresh(o.root),
    "rebase": lambda o: rebase(o.root, o.version, o.dry_run),
    "pr": lambda o: fresh(o.root, upgrade.pr, o.clone.resolve()),
    "mutate": lambda o: fresh(o.root, mutate.mutate, o.patches),
}


def refuse_old_tools():
    if sys.version_info < (3, 11, 4) or not shutil.which("git"):
        raise ForkError(
            "The tool needs Python 3.11.4 and git. Received: Python "
            f"{sys.version.split()[0]}, git at {shutil.which('git')}. "
            "Another Python: `make PYTHON=python3.12 ...`."
        )


def main(args=None):
    options = parser().parse_args(args)
    options.root = options.root.resolve()
    # An end by `kill` or a time limit cleans up like one by Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        refuse_old_tools()
        with locked(options.root, options.command):
            COMMANDS[options.command](options)
    except (ForkError, gitcmd.GitError) as error:
        print(f"fork.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
