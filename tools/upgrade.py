"""Moves the patch set to another release of Keras, or to a clone of it."""

import ast
import fnmatch
import pathlib
import re
import tempfile
import textwrap

import api
import gitcmd
import patchset
import upstream
from files import write
from upstream import ForkError

BRANCH = "remat"
VERSION = "keras/src/version.py"
REST_TOPIC = "Add gradient rematerialization"
API_TOPIC = "Regenerate the public API"
START = "refs/fork/start"  # in a clone, where the branch began


def rebase(root, tree, version):
    """Rebases `tree`, fresh from `assemble`; returns (pin, conflicts)."""
    pin = upstream.latest(version, pathlib.Path(root, "build", "cache"))
    commit = add_release(root, tree, pin)
    gitcmd.git(tree, "reset", "-q", "--hard", "patchset")
    conflicts = []
    try:
        gitcmd.git(tree, "rebase", "--onto", commit, "base", BRANCH)
    except gitcmd.GitError:
        conflicts = settle_version(tree, commit, conflicting(tree))
    if conflicts:
        facts = patchset.noted(tree)
        facts["next"] = {"commit": commit, "pin": str(pin)}
        patchset.note(tree, facts)
        return pin, conflicts
    gitcmd.git(tree, "tag", "-f", "base", commit)
    gitcmd.git(tree, "tag", "-f", "patchset", "HEAD")
    patchset.complete(root, tree)
    gitcmd.commit(tree, "generated: public API, devtree", "made")
    facts = patchset.noted(tree)
    patchset.note(tree, facts | {"pin": str(pin)})
    return pin, []


def settle_version(tree, commit, conflicts):
    """Resolves the one conflict that each release brings: its own number.

    Returns the conflicts that are left.
    """
    left = [x for x in conflicts if x != VERSION]
    if not conflicts:
        raise ForkError(f"`git rebase` failed in {tree} without a conflict.")
    if left == conflicts:
        return conflicts
    ours = gitcmd.text(tree, "show", f"patchset:{VERSION}")
    theirs = gitcmd.git(tree, "show", f"{commit}:{VERSION}").decode()
    local = re.search(r'^__version__ = "[^"+]+(\+[^"]+)"', ours, re.MULTILINE)
    if not local:
        return conflicts
    line = r'^(__version__ = "[^"+]+)"'
    text = re.sub(line, rf'\1{local[1]}"', theirs, flags=re.MULTILINE)
    write(tree / VERSION, text.encode())
    gitcmd.git(tree, "add", VERSION)
    if not left:
        gitcmd.git(tree, "rebase", "--continue", env={"GIT_EDITOR": "true"})
    return left


def add_release(root, tree, pin):
    """Commits another release on top of `base`, out of the work tree."""
    archive = pathlib.Path(root, "build", "cache", pin.archive)
    with tempfile.TemporaryDirectory(dir=tree.parent) as scratch:
        source = pathlib.Path(scratch, "keras")
        upstream.unpack(archive, source)
        env = {
            "GIT_DIR": str(tree / ".git"),
            "GIT_WORK_TREE": str(source),
            "GIT_INDEX_FILE": str(pathlib.Path(scratch, "index")),
        }
        gitcmd.stage(source, env=env)
        made = gitcmd.text(source, "write-tree", env=env)
    tag = f"upstream-{pin.version}"
    message = ["-p", "base", "-m", f"keras {pin.version}"]
    commit = gitcmd.text(tree, "commit-tree", made, *message)
    gitcmd.git(tree, "tag", "-f", tag, commit)
    return commit


def conflicting(folder, **options):
    args = ["diff", "--name-only", "--diff-filter=U", "-z"]
    return gitcmd.fields(gitcmd.git(folder, *args, **options))


class Topics:
    """What topics.txt says: subjects, why they are, patterns of files."""

    def __init__(self, root):
        path = pathlib.Path(root, "topics.txt")
        rows = path.read_text().splitlines() if path.exists() else []
        self.patterns, self.reasons, topic = [], {}, None
        for row in rows:
            if not row.strip() or row.strip().startswith("#"):
                continue
            if not row[0].isspace():
                topic = row.strip()
                self.reasons[topic] = []
            elif topic is None:
                raise ForkError(
                    "topics.txt has subjects, and patterns indented below "
                    f"them. Received: {row!r} before the first subject."
                )
            elif row.strip().startswith("> "):
                self.reasons[topic].append(row.strip()[2:])
            else:
                self.patterns.append((topic, row.strip()))
        self.patterns.append((REST_TOPIC, "keras/src/*"))

    def split(self, paths):
        """Returns {topic: paths}, in the order of topics.txt."""
        found = {topic: [] for topic in self.reasons}
        for path in paths:
            match = [x for x in self.patterns if fnmatch.fnmatch(path, x[1])]
            topic, _ = max(match, key=lambda x: len(x[1]))
            found.setdefault(topic, []).append(path)
        return {topic: rows for topic, rows in found.items() if rows}

    def why(self, topic):
        return " ".join(self.reasons.get(topic, ()))


def message(root, topic, why, paths):
    """A commit message: subject, reason, and what each file is for."""
    files = patchset.read(root)
    start = [topic, ""]
    if why:
        start += [textwrap.fill(why, 72), ""]
    rows = []
    for path in paths:
        if f"{path}.patch" in files:
            head = patchset.split(files[f"{path}.patch"].data)[0]
            rows.append(f"{path}: {patchset.field(head, 'Purpose')}")
        elif path in files and not path.endswith("_test.py"):
            doc = ast.get_docstring(ast.parse(files[path].data))
            if doc:
                rows.append(f"{path}: {doc.splitlines()[0]}")
    rows = [textwrap.fill(x, 72, subsequent_indent="  ") for x in rows]
    return "\n".join([*start, *rows])


def wanted(root, tree):
    """The paths that upstream should see: no devtree, nothing inappropriate.

    `keras/api` is not among them: it is generated, for each commit.
    """
    skip = set(patchset.devtree(root))
    for name, file in patchset.read(root).items():
        if name.endswith(".patch"):
            status = patchset.field(
                patchset.split(file.data)[0], "Upstream-Status"
            )
            if status.startswith("Inappropriate"):
                skip.add(name.removesuffix(".patch"))
    changes = gitcmd.changed(tree, "base", "made", "keras/src")
    return [path for path in changes if path not in skip]


def pr(root, tree, clone):
    """Commits the patch set to a branch of `clone`, by topic, and stops."""
    start(clone)
    subjects = gitcmd.text(clone, "log", "-50", "--format=%s", own=True)
    topics = Topics(root)
    for topic, paths in topics.split(wanted(root, tree)).items():
        if topic in subjects.splitlines():
            continue
        options = ["--binary", "--full-index", "--no-renames"]
        diff = gitcmd.git(tree, "diff", *options, "base", "made", "--", *paths)
        transfer(clone, topic, diff)
        commit(clone, message(root, topic, topics.why(topic), paths))
        print(f"pr: {topic} ({len(paths)} files)")
    commit(clone, API_TOPIC)
    print(f"pr: branch {BRANCH} of {clone} is ready to be read, and not pushed")


def transfer(clone, topic, diff):
    try:
        gitcmd.git(clone, "apply", "--3way", "--index", data=diff, own=True)
    except gitcmd.GitError as error:
        conflicts = conflicting(clone, own=True)
        raise ForkError(
            f"`{topic}` does not apply as it is ({conflicts or error}). "
            f"Resolve the conflicts in {clone}, `git add` them, "
            f"`git commit -m '{topic}'`, and run `pr` again for the rest."
        ) from None


def commit(clone, text):
    """Commits what is staged, with the public API that it amounts to."""
    state = gitcmd.text(clone, "write-tree", own=True)
    api.generate(clone, START, state)
    gitcmd.git(clone, "add", "--all", "--", "keras/api", own=True)
    if gitcmd.text(clone, "diff", "--cached", "--name-only", own=True):
        gitcmd.git(clone, "commit", "-q", "-m", text, own=True)


def start(clone):
    """Makes the branch, or goes on with it; refuses unfinished work."""
    if not pathlib.Path(clone, "keras", "src").is_dir():
        raise ForkError(
            "`pr` needs a git clone of Keras. "
            f"Received: {clone}, which has no keras/src."
        )
    if gitcmd.git(clone, "status", "--porcelain", own=True):
        raise ForkError(
            "`pr` needs a clone without uncommitted work. "
            f"Received: {clone}. Commit or stash what is there."
        )
    if gitcmd.text(clone, "branch", "--show-current", own=True) == BRANCH:
        if gitcmd.text(clone, "for-each-ref", START):
            return
        raise ForkError(
            f"`pr` goes on with a branch {BRANCH} that it has made. Received: "
            f"{clone}, where another one is checked out. Rename it."
        )
    if gitcmd.text(clone, "branch", "--list", BRANCH, own=True):
        raise ForkError(
            f"`pr` makes the branch {BRANCH}. Received: {clone}, where it "
            "exists. Switch to it to go on, or rename it."
        )
    gitcmd.git(clone, "update-ref", START, "HEAD")
    gitcmd.git(clone, "switch", "-q", "-c", BRANCH, own=True)
