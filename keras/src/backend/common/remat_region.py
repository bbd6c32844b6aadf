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

import functools

from keras.src import tree
from keras.src.backend.common.keras_tensor import any_symbolic_tensors
from keras.src.backend.common.masking import get_keras_mask
from keras.src.backend.common.masking import set_keras_mask
from keras.src.backend.common.remat_attributes import attributes
from keras.src.backend.common.remat_fields import gathered
from keras.src.backend.common.remat_fields import has_parts
from keras.src.backend.common.remat_fields import spread
from keras.src.backend.common.remat_inference import in_inference
from keras.src.backend.common.remat_later import warn_later
from keras.src.backend.common.remat_results import Results
from keras.src.backend.common.remat_results import engine
from keras.src.backend.common.remat_results import is_variable
from keras.src.backend.common.remat_surroundings import capture_surroundings
from keras.src.backend.common.remat_surroundings import enter_surroundings
from keras.src.backend.common.stateless_scope import StatelessScope
from keras.src.backend.common.stateless_scope import get_stateless_scope
from keras.src.backend.common.symbolic_scope import in_symbolic_scope


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
    if in_inference():
        return f(*args, **kwargs)
    return engine().untraced(call_region, f, args, kwargs, policy, name)


def call_region(f, args, kwargs, policy, name):
    if in_inference():  # asked again: an engine's tracer may not have known
        return f(*args, **kwargs)
    run = Run(f, args, kwargs, policy, name)
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
        is_built = getattr(args[0], "built", False)
        with (
            attributes(stateless_scope=scope.base()),
            engine().building(is_built),
        ):
            return method(*args, **kwargs)

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

    def __init__(self, f, args, kwargs, policy=None, name=None):
        self.f = f
        self.policy = policy
        self.name = name or name_of(f)
        self.structure = (args, kwargs)
        self.leaves = tree.flatten(self.structure)
        self.has_fields = any(map(has_parts, self.leaves))
        if self.has_fields:
            self.structure = spread(self.structure, is_entering)
            self.leaves = tree.flatten(self.structure)
        self.places, self.inputs = [], []
        for i, leaf in enumerate(self.leaves):
            if is_entering(leaf):
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
        self.reads = {}

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
            self.reads[key] = (variable, engine().waiting(value, self))
        return self.reads[key][1]

    def replace_read(self, variable, value):
        """Gives the later runs `value`, as the old one is being overwritten."""
        if id(variable) in self.reads:
            self.reads[id(variable)] = (variable, value)

    def first(self, *inputs):
        """Runs the callable; returns all its results as a flat list."""
        scope = RecordingScope(self, get_stateless_scope())
        with scope:
            self.results = Results(self.call(inputs), scope)
            self.unmasked = [
                i for i in self.masked if get_keras_mask(inputs[i]) is None
            ]
        self.updated = list(scope.updated.values())
        self.loss_owners = scope.loss_owners
        return self.results.release()

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
                results = Results(self.call(inputs), scope)
        except Exception as e:
            if not engine().is_early_stop(e):
                e.add_note(f"(while '{self.name}' ran again for its gradient)")
            raise
        finally:
            for i, mask in zip(self.masked, held):
                set_keras_mask(inputs[i], mask)
        self.check(results)
        return results.release()

    def call(self, inputs):
        leaves = list(self.leaves)
        for i, x in zip(self.places, inputs):
            leaves[i] = x
        for i, mask in zip(self.masked, inputs[len(self.places) :]):
            set_keras_mask(inputs[i], mask)
        given = tree.pack_sequence_as(self.structure, leaves)
        args, kwargs = gathered(given) if self.has_fields else given
        return self.f(*args, **kwargs)

    def check(self, results):
        if results.equals(self.results):
            return
        raise ValueError(
            "A rematerialized function must return values of the same "
            "structure, shape and dtype each time that it runs. "
            f"Received: function '{self.name}' returned "
            f"{self.results.describe()} in the forward pass and "
            f"{results.describe()} when it ran again for the backward pass. "
            "Take out what changes between the runs (a Python counter, an "
            "unseeded draw), or leave this function out of rematerialization "
            "(`remat=False`)."
        )

    def finish(self, tensors):
        """Assigns, adds and attaches what the first run gave, once."""
        outputs, updates, losses = self.results.divided(tensors)
        for i in self.unmasked:
            set_keras_mask(self.inputs[i], None)
        for variable, value in zip(self.updated, updates):
            variable.assign(value)
        for layer, loss in zip(self.loss_owners, losses):
            layer.add_loss(loss)
        # From here on only later runs matter: hold nothing of this one.
        self.updated = self.loss_owners = self.inputs = None
        return outputs


def is_entering(x):
    """Whether `x` enters a region as a tensor."""
    return engine().is_input(x) and not is_variable(x)


def name_of(f):
    layer = getattr(getattr(f, "__self__", None), "name", None)
    name = getattr(f, "__qualname__", None) or repr(f)
    return f"{name} of {layer}" if layer else name
