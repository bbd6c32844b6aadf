"""Regions: parts of a computation that the backward pass runs again.

A region turns any Python callable into a *pure* function of tensors, so that
an engine's own checkpoint can run it twice without anyone noticing:

1. the arguments are split into tensors, which enter the engine's checkpoint,
   and everything else (flags, strings, `None`, variables), which is bound
   outside of it;
2. what Keras keeps in thread-local state is captured, and entered again for
   the second run, which may happen much later and in another thread;
3. the callable runs under a `RecordingScope`: reads of variables fall through
   and are noted, writes stay in the scope;
4. outputs, new values of variables, losses and masks all leave as values, and
   the caller assigns, adds and attaches them once;
5. the second run starts from the noted values and its writes are dropped, so
   that dropout masks, statistics and counters are those of the first run;
6. the second run must give values of the same structure, shape and dtype.

This file knows no engine. An engine is the module `backend.core.remat_engine`
(`keras/src/backend/<name>/remat.py`), see `checkpoint` there.
"""

import contextlib
import copy
import functools

from keras.src import tree
from keras.src.backend.common import global_state
from keras.src.backend.common.keras_tensor import any_symbolic_tensors
from keras.src.backend.common.masking import get_keras_mask
from keras.src.backend.common.masking import set_keras_mask
from keras.src.backend.common.remat_fields import gathered
from keras.src.backend.common.remat_fields import spread
from keras.src.backend.common.remat_later import warn_later
from keras.src.backend.common.stateless_scope import StatelessScope
from keras.src.backend.common.stateless_scope import get_stateless_scope
from keras.src.backend.common.symbolic_scope import in_symbolic_scope

# Thread-local settings that change what a layer computes.
SURROUNDINGS = (
    "autocast_scope",
    "current_call_ctx",
    "distribution",
    "dtype_policy",
    "flash_attention",
    "name_scope_stack",
    "remat_depth",
    "remat_inherited",
    "remat_keeper",
    "remat_marks",
    "remat_units",
    "remat_scope_stack",
    "remat_time",
    "torch_device",
)


def run_region(f, args=(), kwargs=None, policy=None, name=None):
    """Calls `f(*args, **kwargs)` as a region.

    Args:
        f: Any callable.
        args: Tuple of positional arguments, any nest of tensors and others.
        kwargs: Dict of keyword arguments.
        policy: What the region keeps, in the form the engine takes. Defaults
            to `None`, keep nothing.
        name: What error messages call the region. Defaults to the name of
            `f`.

    Returns:
        What `f` returns.
    """
    kwargs = kwargs or {}
    if in_symbolic_scope() or any_symbolic_tensors(args, kwargs):
        return f(*args, **kwargs)
    if not engine().records_gradient():
        return f(*args, **kwargs)
    run = Run(f, args, kwargs, name)
    run.policy = policy
    results = run.finish(engine().checkpoint(run, run.inputs, policy))
    if policy is not None:
        warn_later(policy.warn_unseen)
    return results


def open_policies():
    """The policies of the regions that are open, the innermost first."""
    scope, policies = get_stateless_scope(), []
    while isinstance(scope, RecordingScope):
        policies.append(scope.run.policy)
        scope = scope.outer
    return [policy for policy in policies if policy is not None]


def engine():
    from keras.src import backend

    return backend.core.remat_engine


def outside(method):
    """Makes a method run as if no region were open, for what creates variables.

    A variable that is created inside a region must be a real one, not a
    placeholder of the region's scope.
    """

    @functools.wraps(method)
    def call(*args, **kwargs):
        scope = get_stateless_scope()
        if not isinstance(scope, RecordingScope):
            return method(*args, **kwargs)
        global_state.set_global_attribute("stateless_scope", scope.base())
        try:
            with engine().building():
                return method(*args, **kwargs)
        finally:
            global_state.set_global_attribute("stateless_scope", scope)

    return call


def note_losses(layer, losses):
    """Lets the open region carry losses out, if there is one, and says so."""
    scope = get_stateless_scope()
    if not isinstance(scope, RecordingScope):
        return False
    for loss in losses:
        scope.add_loss(loss)
        scope.loss_owners.append(layer)
        layer._loss_ids.add(id(loss))
    return True


class RecordingScope(StatelessScope):
    """Notes what a region reads, writes and adds, and lets nothing out."""

    def __init__(self, run, outer):
        super().__init__(collect_losses=True, initialize_variables=False)
        self.run = run
        self.outer = outer
        self.updated, self.before = {}, {}
        self.loss_owners = []

    def base(self):
        scope = self.outer
        while isinstance(scope, RecordingScope):
            scope = scope.outer
        return scope

    def get_current_value(self, variable):
        value = self.state_mapping.get(id(variable))
        return self.run.read(variable, self.outer) if value is None else value

    def add_update(self, update):
        variable, value = update
        key = id(variable)
        if key not in self.updated:
            self.updated[key] = variable
            self.before[key] = self.get_current_value(variable)
        if self.base() is None:
            # An assignment in place: no gradient flows through it, and what
            # reads the variable later differentiates the variable itself.
            value = engine().assigned(value, self.before[key])
        super().add_update((variable, value))

    def new_values(self):
        return [self.state_mapping[key] for key in self.updated]

    def __exit__(self, *args, **kwargs):
        super().__exit__(*args, **kwargs)
        for layer, loss in zip(self.loss_owners, self.losses):
            layer._loss_ids.discard(id(loss))


class Run:
    """One call of a region: its first run, its later runs, its results."""

    def __init__(self, f, args, kwargs, name=None):
        self.f = f
        self.name = name or name_of(f)
        self.structure = (args, kwargs)
        self.leaves = tree.flatten(self.structure)
        self.places, self.inputs = [], []
        for i, leaf in enumerate(self.leaves):
            if engine().is_input(leaf) and not is_variable(leaf):
                self.places.append(i)
                self.inputs.append(leaf)
                self.leaves[i] = None
        self.structure = tree.map_structure(lambda x: None, self.structure)
        # A layer may take the mask off its input: note masks before it runs.
        masks = [get_keras_mask(x) for x in self.inputs]
        self.masked = [i for i, m in enumerate(masks) if m is not None]
        self.inputs += [masks[i] for i in self.masked]
        self.unmasked = []
        self.surroundings = capture_surroundings()
        self.outer = get_stateless_scope()
        self.policy = None
        self.reads = {}
        self.specs = None

    def read(self, variable, outer):
        """The value that `variable` had when it was first met in this run."""
        key = id(variable)
        if key not in self.reads:
            value = None if outer is None else outer.get_current_value(variable)
            if value is None or value is variable._value:
                # Also if an outer region has it: each must note the read.
                value = engine().read(variable, self)
            if value is None:  # not initialized yet
                return None
            self.reads[key] = (variable, value)
        return self.reads[key][1]

    def replace_read(self, variable, value):
        """Gives the later runs `value`, as the old one is being overwritten."""
        if id(variable) in self.reads:
            self.reads[id(variable)] = (variable, value)

    def first(self, *inputs):
        """Runs the callable; returns all its results as a flat list."""
        scope = RecordingScope(self, get_stateless_scope())
        with scope:
            results = self.collect(scope, self.call(inputs))
            self.unmasked = [
                i for i in self.masked if get_keras_mask(inputs[i]) is None
            ]
        self.updated = list(scope.updated.values())
        self.loss_owners = scope.loss_owners
        self.specs = [spec_of(x) for x in results]
        return results

    def again(self, *inputs, values=()):
        """Runs it a further time from the noted state; drops all effects.

        `values`, when given, stand for what was read, in the order of
        `reads`.
        """
        engine().check_reads(self)
        held = [get_keras_mask(inputs[i]) for i in self.masked]
        scope = RecordingScope(self, self.outer)
        scope.state_mapping.update(zip(self.reads, values))
        try:
            with enter_surroundings(self.surroundings), scope:
                results = self.collect(scope, self.call(inputs), check=True)
        except Exception as e:
            if not engine().is_early_stop(e):
                e.add_note(f"(while '{self.name}' ran again for its gradient)")
            raise
        finally:
            for i, mask in zip(self.masked, held):
                set_keras_mask(inputs[i], mask)
        self.check(results)
        return results

    def call(self, inputs):
        leaves = list(self.leaves)
        for i, x in zip(self.places, inputs):
            leaves[i] = x
        for i, mask in zip(self.masked, inputs[len(self.places) :]):
            set_keras_mask(inputs[i], mask)
        args, kwargs = tree.pack_sequence_as(self.structure, leaves)
        return self.f(*args, **kwargs)

    def collect(self, scope, outputs, check=False):
        """All tensors that leave the region; what is no tensor stays here."""
        outputs = spread(outputs)
        leaves = tree.flatten(outputs)
        at = [
            i
            for i, x in enumerate(leaves)
            if engine().is_output(x) and not is_variable(x)
        ]
        tensors = [leaves[i] for i in at]
        masks = [get_keras_mask(x) for x in tensors]
        has_mask = [i for i, m in enumerate(masks) if m is not None]
        updates, losses = scope.new_values(), list(scope.losses)
        if not check:
            for i in at:
                leaves[i] = None
            self.output_structure = tree.map_structure(lambda x: None, outputs)
            self.output_leaves, self.output_places = leaves, at
            self.output_masked = has_mask
            self.sizes = (len(tensors), len(updates), len(losses))
        return tensors + updates + losses + [masks[i] for i in has_mask]

    def check(self, results):
        specs = [spec_of(x) for x in results]
        if specs == self.specs:
            return
        raise ValueError(
            "A rematerialized function must return values of the same "
            "structure, shape and dtype each time that it runs. "
            f"Received: function '{self.name}' returned "
            f"{describe(self.specs)} in the forward pass and "
            f"{describe(specs)} when it ran again for the backward pass. "
            "Take out what changes between the runs (a Python counter, an "
            "unseeded draw), or leave this function out of rematerialization "
            "(`remat=False`)."
        )

    def finish(self, results):
        """Assigns, adds and attaches what the first run gave, once."""
        n_out, n_update, n_loss = self.sizes
        results = list(results)
        tensors, results = results[:n_out], results[n_out:]
        updates, results = results[:n_update], results[n_update:]
        losses, masks = results[:n_loss], results[n_loss:]
        for i, mask in zip(self.output_masked, masks):
            set_keras_mask(tensors[i], mask)
        for i in self.unmasked:
            set_keras_mask(self.inputs[i], None)
        for variable, value in zip(self.updated, updates):
            variable.assign(value)
        for layer, loss in zip(self.loss_owners, losses):
            layer.add_loss(loss)
        leaves = self.output_leaves
        for i, x in zip(self.output_places, tensors):
            leaves[i] = x
        outputs = tree.pack_sequence_as(self.output_structure, leaves)
        outputs = gathered(outputs)
        # From here on only later runs matter: hold nothing of this one.
        self.output_leaves = self.updated = self.loss_owners = None
        self.inputs = None
        return outputs


def is_variable(x):
    from keras.src.backend.common.variables import Variable

    return isinstance(x, Variable)


def name_of(f):
    layer = getattr(getattr(f, "__self__", None), "name", None)
    name = getattr(f, "__qualname__", None) or repr(f)
    return f"{name} of {layer}" if layer else name


def spec_of(x):
    from keras.src.backend import standardize_dtype

    try:
        shape = tuple(x.shape)
    except ValueError:  # of unknown rank
        shape = None
    return shape, standardize_dtype(x.dtype)


def describe(specs):
    return [
        f"{dtype}{'[...]' if shape is None else list(shape)}"
        for shape, dtype in specs
    ]


def capture_surroundings():
    """A copy of the thread-local settings, safe against later changes."""
    captured = {}
    for name in SURROUNDINGS:
        value = global_state.get_global_attribute(name)
        if isinstance(value, list):
            value = list(value)
        captured[name] = value
    context = captured["current_call_ctx"]
    # Layers write into the context as they go, so take a copy; and have one
    # always, or a layer would think that it is the outermost and clear losses.
    captured["current_call_ctx"] = (
        NoContext() if context is None else copy.copy(context)
    )
    return captured


class NoContext:
    """Stands for "no layer is being called" in a second run."""

    entry_layer = None

    def get_value(self, arg_name, default=None):
        return getattr(self, arg_name, default)

    def set_value(self, arg_name, value):
        setattr(self, arg_name, value)


@contextlib.contextmanager
def enter_surroundings(captured):
    names = (*captured, "traceback_filtering")
    before = {n: global_state.get_global_attribute(n) for n in names}
    for name, value in captured.items():
        if isinstance(value, list):
            value = list(value)
        elif name == "current_call_ctx":
            value = copy.copy(value)
        global_state.set_global_attribute(name, value)
    # torch ends a second run early by an exception. The traceback filter
    # would rebuild it, and with it keep the frames and their tensors alive.
    global_state.set_global_attribute("traceback_filtering", False)
    try:
        yield
    finally:
        for name, value in before.items():
            global_state.set_global_attribute(name, value)
