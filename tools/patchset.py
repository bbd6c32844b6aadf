"""The patch set: reading it, and turning it into a tree and back.

Under `keras/`, at upstream's paths, `X.py` is our file and `X.py.patch` the
change to upstream's `X.py`. A tree is a git repository of three commits, each
tagged: `base` (upstream's archive), `patchset` (our files and patches) and
`made` (plus what is generated: the public API, and the files of devtree).
"""

import json
import os
import pathlib
import re

import api
import gitcmd
import upstream
from files import File
from files import marks
from files import scan
from files import write
from upstream import ForkError

STATUSES = r"Pending|Submitted \[.+\]|Accepted \[.+\]|Inappropriate \[.+\]"
TODO = (
    "Purpose: TODO say in one sentence what this seam lets remat do.\n"
    "Upstream-Status: TODO Pending, Submitted [PR], Accepted [version] or "
    "Inappropriate [reason]\n\n"
)


def read(root):
    return scan(root, "keras")


def devtree(root):
    """Returns what upstream's git has and its archive lacks."""
    return scan(pathlib.Path(root, "devtree"), ".")


def replaced(root):
    """Returns {path: blob id} of the upstream files that ours replace."""
    path = pathlib.Path(root, "replaced.txt")
    rows = path.read_text().splitlines() if path.exists() else []
    parts = [x.split() for x in rows if x.strip() and not x.startswith("#")]
    if any(len(x) != 2 for x in parts):
        raise ForkError(
            "A line of replaced.txt is a path and a blob id. "
            f"Received: {[x for x in parts if len(x) != 2]}"
        )
    return dict(parts)


def split(patch):
    """Splits a patch into its header and its diff."""
    text = patch.decode("utf-8", "replace")
    at = 0 if text.startswith("diff --git ") else text.find("\ndiff --git ") + 1
    return (text[:at], text[at:]) if "diff --git " in text else (text, "")


def field(header, name):
    found = re.search(rf"^{name}: *(.+)$", header, re.MULTILINE)
    return found.group(1).strip() if found else ""


# From the repository to a tree.


def assemble(root, tree):
    """Makes `tree`, which must not exist yet, from the repository at `root`."""
    facts = remember(root)
    pin = upstream.read_pin(root)
    archive = upstream.fetch(pin, pathlib.Path(root, "build", "cache"))
    upstream.unpack(archive, tree)
    gitcmd.init(tree)
    gitcmd.commit(tree, f"keras {pin.version}", "base")
    lay(tree, read(root), replaced(root))
    gitcmd.commit(tree, "patch set", "patchset")
    complete(root, tree)
    gitcmd.commit(tree, "generated: public API, devtree", "made")
    note(tree, facts)


def lay(tree, files, allowed):
    """Puts our files and patches onto upstream's."""
    base = gitcmd.listing(tree, "base")
    for name, file in files.items():
        if name.endswith(".patch"):
            apply(tree, name, file, base)
        elif name.startswith("keras/api/"):
            raise ForkError(
                "keras/api is generated from `@keras_export`. "
                f"Received: {name}. Delete it."
            )
        elif name in base and name not in allowed:
            raise ForkError(
                "A file of ours may not stand in for one of upstream's. "
                f"Received: {name}. Change the file in build/tree and run "
                "`make export`, or list it in replaced.txt."
            )
        else:
            write(pathlib.Path(tree, name), file.data, file.executable)


def apply(tree, name, file, base):
    target = name.removesuffix(".patch")
    if target not in base:
        raise ForkError(
            "A patch needs its upstream file. "
            f"Received: {name}, but {target} is not in the archive."
        )
    touched = re.findall(rb"^diff --git a/(\S+) b/(\S+)$", file.data, re.M)
    if touched != [(target.encode(), target.encode())]:
        raise ForkError(
            "A patch changes exactly the file it is named after. "
            f"Received: {name} with {touched}. Write it by `make export`."
        )
    try:
        gitcmd.git(tree, "apply", "-", data=file.data)
    except gitcmd.GitError as error:
        raise ForkError(
            f"A patch must apply without fuzz. Received: {name}: {error}. "
            "Edit the tree and run `make export`; for another release of "
            "Keras run `make rebase VERSION=...`."
        ) from None


def complete(root, tree):
    """Adds what is generated and what upstream's archive lacks."""
    base = gitcmd.listing(tree, "base")
    for name, file in devtree(root).items():
        if name in base:
            raise ForkError(
                "devtree holds only what the archive lacks. "
                f"Received: {name}. Delete devtree/{name}."
            )
        write(pathlib.Path(tree, name), file.data, file.executable)
    api.generate(tree, "base")


# From a tree to the repository.


def edited(tree):
    """Returns a snapshot, and {path: letter} of what it changes upstream."""
    state = gitcmd.snapshot(tree)
    return state, gitcmd.changed(tree, "base", state, "keras", ":!keras/api")


def exported(root, tree):
    """Returns the patch set that `tree` amounts to, as `read` would."""
    state, changes = edited(tree)
    whole, generated = replaced(root), devtree(root)
    modes = gitcmd.listing(tree, state)
    files = {}
    for path, letter in changes.items():
        if path in generated:
            continue
        if letter == "D":
            raise ForkError(
                "A patch set cannot delete upstream's files. "
                f"Received: no {path}. Bring it back with "
                f"`git -C build/tree checkout base -- {path}`."
            )
        if letter == "A" or path in whole:
            data = gitcmd.git(tree, "show", f"{state}:{path}")
            files[path] = File(data, modes[path][0] == "100755")
        else:
            name = f"{path}.patch"
            files[name] = File(header(root, name) + diff(tree, state, path))
    return files


def diff(tree, state, path):
    options = ["-U1", "--full-index", "--no-renames"]
    return gitcmd.git(tree, "diff", *options, "base", state, "--", path)


def header(root, name):
    path = pathlib.Path(root, name)
    return (split(path.read_bytes())[0] if path.exists() else TODO).encode()


# What a tree remembers of the repository it was made from.


def remember(root):
    """Returns marks of all that a tree is made from."""
    pin = File(str(upstream.read_pin(root)).encode())
    made_by = {f"devtree/{k}": v for k, v in devtree(root).items()}
    for tool in ("api.py", "patchset.py"):
        code = pathlib.Path(__file__).with_name(tool).read_bytes()
        made_by[f"tools/{tool}"] = File(code)
    return {
        "pin": str(upstream.read_pin(root)),
        "files": marks(read(root) | {"upstream.txt": pin}),
        "made_by": marks(made_by) | replaced(root),
    }


def note(tree, facts):
    data = json.dumps(facts, indent=1).encode()
    write(pathlib.Path(tree, ".git", "fork.json"), data)


def noted(tree):
    """Returns what `note` kept, or None if we did not make this tree."""
    path = pathlib.Path(tree, ".git", "fork.json")
    return json.loads(path.read_bytes()) if path.exists() else None


def unexported(tree):
    """Returns {path: letter} of the edits since the tree was made."""
    state = gitcmd.snapshot(tree)
    if state == gitcmd.text(tree, "rev-parse", "patchset^{tree}"):
        return {}  # an aborted rebase: only what is generated is missing
    return gitcmd.changed(tree, "made", state)


def busy(tree):
    """Whether a rebase in this tree waits to be finished."""
    names = ("rebase-merge", "rebase-apply")
    return any(os.path.isdir(os.path.join(tree, ".git", x)) for x in names)
