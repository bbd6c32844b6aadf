"""The rules that the repository must keep. Reports every break, not the first.

The main one: assemble, export, and nothing in the repository may change.
"""

import pathlib
import re
import shutil
import subprocess
import sys

import gitcmd
import patchset
import seams
import upstream

MAX_ADDED = 12
MAX_REMOVED = 3
INDEX = re.compile(
    r"^index ([0-9a-f]{40})\.\.([0-9a-f]{40}) 100(644|755)$", re.M
)


def problems(root, tree):
    """Yields a sentence for each broken rule. `tree` is freshly assembled."""
    files = patchset.read(root)
    yield from round_trip(root, tree, files)
    yield from stand_ins(root, tree, files)
    base = gitcmd.listing(tree, "base")
    for name, file in files.items():
        if name.endswith(".patch"):
            yield from patch(name, file, base)
    yield from seams.problems(root)
    yield from same_base(root, tree)
    yield from lint(tree)


def round_trip(root, tree, files):
    back = patchset.exported(root, tree)
    for name in sorted(files.keys() | back.keys()):
        if files.get(name) != back.get(name):
            yield (
                f"{name}: assembling and exporting must give it back as it "
                "is. Run `make tree export` and look at `git diff`."
            )


def stand_ins(root, tree, files):
    base = gitcmd.listing(tree, "base")
    for name, blob in patchset.replaced(root).items():
        known = base.get(name, ("", "no such file"))[1]
        if known != blob:
            yield (
                f"{name}: replaced.txt names blob {blob}, upstream has "
                f"{known}. Read what changed, then update replaced.txt."
            )
        if name not in files:
            yield f"{name}: stands in replaced.txt, but we have no such file."


def patch(name, file, base):
    head, diff = patchset.split(file.data)
    target = name.removesuffix(".patch")
    index = INDEX.findall(diff)
    if diff.count("\ndiff --git ") or len(index) != 1 or "\n@@ " not in diff:
        yield f"{name}: must be one text diff with full blob ids."
    elif index[0][0] != base[target][1]:
        yield (
            f"{name}: is made for blob {index[0][0]}, but {target} is "
            f"{base[target][1]}. Run `make tree export`."
        )
    yield from heading(name, head)
    added, removed = size(diff)
    if added > MAX_ADDED or removed > MAX_REMOVED:
        if not patchset.field(head, "Note"):
            yield (
                f"{name}: adds {added} and removes {removed} lines; the "
                f"budget is {MAX_ADDED} and {MAX_REMOVED}. Move logic to a "
                "file of ours, or say why not in a `Note:` line."
            )


def heading(name, head):
    purpose = patchset.field(head, "Purpose")
    status = patchset.field(head, "Upstream-Status")
    if not purpose or "TODO" in purpose:
        yield f"{name}: needs a line `Purpose: <one sentence>` at its top."
    if not re.fullmatch(patchset.STATUSES, status) or "TODO" in status:
        yield (
            f"{name}: needs a line `Upstream-Status:` with Pending, "
            "Submitted [PR], Accepted [version] or Inappropriate [reason]. "
            f"Received: {status!r}"
        )


def size(diff):
    """Counts the added and removed lines of a patch."""
    body = diff.partition("\n@@ ")[2].splitlines()[1:]
    return tuple(sum(x.startswith(sign) for x in body) for sign in "+-")


def same_base(root, tree):
    """The tree that people work in must stand on the pinned archive."""
    kept = pathlib.Path(root, "build", "tree")
    facts = patchset.noted(kept)
    if not facts or facts["pin"] != str(upstream.read_pin(root)):
        return
    ids = {gitcmd.text(x, "rev-parse", "base^{tree}") for x in (kept, tree)}
    if len(ids) != 1:
        yield (
            f"build/tree: its base is not the pinned archive: {sorted(ids)}. "
            "Run `make export`, then `make tree`."
        )


def ruff():
    """Returns the ruff beside this Python, else the one on the path."""
    beside = pathlib.Path(sys.executable).with_name("ruff")
    return str(beside) if beside.exists() else shutil.which("ruff")


def lint(tree):
    """ruff with upstream's settings, on the files that we add or patch."""
    _, changes = patchset.edited(tree)
    state = gitcmd.snapshot(tree)
    changes |= gitcmd.changed(tree, "base", state, "keras/api")
    paths = [x for x in changes if x.endswith(".py")]
    if not ruff():
        print("check: ruff is not installed, so style was not checked.")
        return
    for command in (
        ["check", "--output-format=concise"],
        ["format", "--check"],
    ):
        done = subprocess.run(
            [ruff(), *command, "--no-cache", "--quiet", *paths],
            cwd=tree,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            said = (done.stdout + done.stderr).strip()
            yield f"ruff {command[0]}:\n{said}"
