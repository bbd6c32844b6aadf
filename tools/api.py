"""Generates the lines of `keras/api` that our files add or take away.

Exports are literal strings in `@keras_export(...)`, so `ast` finds them
without importing Keras. Only the files that we add, replace or patch are
read: what they export now, less what upstream's versions exported, is the
change. Both public copies (`keras` and the one for TensorFlow users) get it.
"""

import ast
import pathlib
import re

import gitcmd
from files import write
from upstream import ForkError

ROOTS = ("keras/api", "keras/api/_tf_keras/keras")
MAX_LINE = 80


def exports(source, path):
    """Returns the set of (public name, module, symbol) that a file exports."""
    module = path.removesuffix(".py").replace("/", ".")
    module = module.removesuffix(".__init__")
    found = set()
    if b"keras_export" not in source:
        return found
    try:
        parsed = ast.parse(source, path)
    except SyntaxError as error:
        raise ForkError(
            f"A module must be valid Python. Received: {path}: {error}"
        ) from None
    for node in ast.walk(parsed):
        for call in getattr(node, "decorator_list", ()):
            if getattr(getattr(call, "func", None), "id", "") == "keras_export":
                names = _literal(call, path)
                found |= {(name, module, node.name) for name in names}
    return found


def _literal(call, path):
    value = call.args[0] if call.args else call.keywords[0].value
    try:
        names = ast.literal_eval(value)
    except ValueError:
        raise ForkError(
            "`keras_export` takes a literal string or a list of them. "
            f"Received: {ast.unparse(call)} at {path}:{call.lineno}"
        ) from None
    return [names] if isinstance(names, str) else names


def natural(name):
    """Sorts `conv2` before `conv10`, as isort does."""
    return [
        (0, int(part), "") if part.isdigit() else (1, 0, part)
        for part in re.split(r"(\d+)", name)
    ]


def order(row):
    """The sort key of one import, as ruff's isort orders single lines."""
    module, name, alias = row
    if name.isupper() and len(name) > 1:
        kind = 0
    else:
        kind = 1 if name[:1].isupper() else 2
    return natural(module), kind, natural(name), natural(alias or "")


def line(row):
    module, name, alias = row
    start = f"from {module} import "
    what = name if alias is None else f"{name} as {alias}"
    if len(start + what) <= MAX_LINE:
        return f"{start}{what}\n"
    return f"{start}(\n    {what},\n)\n"


def parse(source):
    """Splits an API file into its head and its list of imports."""
    body = ast.parse(source).body
    rows = [x for x in body if isinstance(x, ast.ImportFrom)]
    first = rows[0].lineno - 1 if rows else len(source.splitlines())
    head = "".join(source.splitlines(keepends=True)[:first])
    return head, [(x.module, x.names[0].name, x.names[0].asname) for x in rows]


def render(head, rows):
    return head + "".join(line(row) for row in sorted(rows, key=order))


class Api:
    """The API files of a tree, as upstream made them and then edited."""

    def __init__(self, tree, base):
        self.tree = tree
        self.base = base
        self.files = gitcmd.listing(tree, base)
        self.edited = {}

    def original(self, path):
        return gitcmd.git(self.tree, "show", f"{self.base}:{path}").decode()

    def load(self, path):
        if path not in self.edited:
            if path not in self.files:
                return self.create(path)
            source = self.original(path)
            head, rows = parse(source)
            if render(head, rows) != source:
                raise ForkError(
                    "An API file must read as upstream's generator writes it. "
                    f"Received another form in {path}. Mend `tools/api.py`."
                )
            self.edited[path] = (head, rows)
        return self.edited[path][1]

    def create(self, path):
        """Starts a sub-package and names it in its parent."""
        root = next(r for r in reversed(ROOTS) if path.startswith(f"{r}/"))
        package = pathlib.PurePath(path).parent
        name = package.name
        above = self.load(f"{package.parent}/__init__.py")
        inner = str(package.parent.relative_to(root)).replace("/", ".")
        module = "keras" if inner == "." else f"keras.{inner}"
        above.append((module, name, name))
        head, _ = parse(self.original("keras/api/utils/__init__.py"))
        self.edited[path] = (head, [])
        return self.edited[path][1]

    def change(self, export, add):
        public, module, symbol = export
        package, alias = public.rsplit(".", 1)
        inner = package.split(".")[1:]
        for root in ROOTS:
            rows = self.load("/".join([root, *inner, "__init__.py"]))
            if not add:
                rows[:] = [x for x in rows if x != (module, symbol, alias)]
                continue
            taken = [x for x in rows if x[2] == alias]
            if taken:
                raise ForkError(
                    f"A public name has one owner. Received: {public} from "
                    f"{module}, but {taken[0][0]} exports it."
                )
            rows.append((module, symbol, alias))

    def wanted(self):
        """Returns {path: text} of the files that differ from upstream's."""
        return {p: render(*parts) for p, parts in self.edited.items()}


def ours(tree, base, state):
    """Returns the exports that our files (take away, add)."""
    old, new = set(), set()
    files = gitcmd.changed(tree, base, state, "keras/src")
    for path, letter in files.items():
        if not path.endswith(".py") or path.endswith("_test.py"):
            continue
        if letter != "A":
            source = gitcmd.git(tree, "show", f"{base}:{path}")
            old |= exports(source, path)
        if letter != "D":
            source = gitcmd.git(tree, "show", f"{state}:{path}")
            new |= exports(source, path)
    return old - new, new - old


def generate(tree, base, state=None):
    """Writes the API files of `tree`; touches only those that must change.

    `state` is what the tree holds, as a git tree. Defaults to all its files.
    """
    state = state or gitcmd.snapshot(tree)
    api = Api(tree, base)
    gone, added = ours(tree, base, state)
    for export in sorted(gone):
        api.change(export, add=False)
    for export in sorted(added):
        api.change(export, add=True)
    wanted = api.wanted()
    stale = gitcmd.changed(tree, base, state, "keras/api")
    for path, letter in stale.items():
        if path in wanted:
            continue
        if letter == "A":
            pathlib.Path(tree, path).unlink()
        else:
            gitcmd.git(tree, "checkout", base, "--", path)
    for path, text in wanted.items():
        write(pathlib.Path(tree, path), text.encode())
