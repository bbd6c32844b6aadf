"""Measures what training keeps, on the running backend.

Each engine tells in its own way which values a step hands from its forward
to its backward part (`keras/src/backend/<name>/remat_measure.py`), and in
which name scope each of them was made. Nothing that the step writes leaves
the stateless scope that it runs in, so the model stays what it was.

What is not counted: variables, the batch, and what an engine keeps inside of
an operation without telling (workspaces of convolutions).
"""

import collections
import contextlib
import importlib

from keras.src import backend
from keras.src import ops
from keras.src import tree
from keras.src.api_export import keras_export
from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.backend.common.remat_scope import setting_of
from keras.src.layers.layer import Layer
from keras.src.remat import plan as remat_plan
from keras.src.remat.measured import Measured
from keras.src.remat.measured import RematReport
from keras.src.remat.specs import as_spec
from keras.src.remat.structure import graph_of
from keras.src.trainers.compile_utils import CompileLoss

LOSS = "remat_report_loss"


@keras_export("keras.utils.remat_report")
def remat_report(model, x, y=None):
    """Measures what a training step keeps, with rematerialization and without.

    A plan predicts from shapes; this shows what the running backend really
    does with your model and batch, layer by layer, beside the prediction. Use
    it to see whether a setting saves what you hoped for, and which layers
    still keep most. Where a policy keeps values, a second table has their bytes
    by name, or by the kind of operation that made them.

    A model, layer or scope that asks for rematerialization is measured as it
    is. If none does, the model is measured as with `model.remat = True`.
    Nothing about the model changes: weights, seeds, statistics, metrics and
    settings are as before.

    Args:
        model: A built Keras model.
        x: A batch of input, any nest of arrays that the model takes.
        y: The targets of the batch. Defaults to `None`: the loss is then the
            mean square of the outputs, as it is for a model that was not
            compiled.

    Returns:
        A `RematReport`. Its `summary()` prints a table.

    Raises:
        ValueError: If the backend does not train, there is no batch, or the
            model is no Keras model or not built.

    Example:

    ```python
    model = keras.applications.ResNet50(weights=None)
    report = keras.utils.remat_report(model, np.ones((8, 224, 224, 3)))
    report.summary()
    report.remat_bytes / report.plain_bytes
    ```
    """
    if not isinstance(model, Layer):
        raise ValueError(
            "`remat_report` measures a Keras model or layer. Received: "
            f"model={model} (of type {type(model)}). To measure a function, "
            "call it in a `keras.layers.Lambda` or a layer of your own."
        )
    if x is None:
        raise ValueError(
            "`remat_report` needs a batch of inputs. Received: x=None"
        )
    if not model.built:
        raise ValueError(
            "`remat_report` needs a model that is built. Received: "
            f"{model}. Call it on a batch first, or use `model.build(...)`."
        )
    batch = Batch(model, x, y)
    with unchanged(model):
        with switched(model, off=True):
            plain = batch.measure()
        with switched(model, off=False):
            remat = batch.measure()
            plan, names = batch.plan(), names_in(model)
    return RematReport(model, plain, remat, plan, names)


class Batch:
    """A model's step on one batch.

    Args:
        model: The model.
        x: Its inputs.
        y: The targets, or `None`.
    """

    def __init__(self, model, x, y):
        self.model = model
        given = (x,) if y is None else (x, y)
        self.given = tree.map_structure(backend.convert_to_tensor, given)
        self.loss = None if y is None else self.compiled_loss()

    def compiled_loss(self):
        own = getattr(self.model, "_compile_loss", None)
        if own is None:
            return None
        # A new one: the model's has metrics, which this must not build.
        loss = CompileLoss(
            own._user_loss,
            own._user_loss_weights,
            output_names=own.output_names,
        )
        x, y = tree.map_structure(as_spec, self.given)
        loss.build(y, backend.compute_output_spec(self.call, x))
        return loss

    def call(self, x):
        if self.model._call_has_training_arg:
            return self.model(x, training=True)
        return self.model(x)

    def forward(self, leaves):
        """The loss, of a flat list of tensors."""
        given = tree.pack_sequence_as(self.given, leaves)
        outputs = self.call(given[0])
        with backend.name_scope(LOSS):
            if self.loss is not None:
                loss = self.loss(given[1], outputs)
            else:
                loss = sum(
                    ops.mean(ops.square(ops.cast(out, "float32")))
                    for out in tree.flatten(outputs)
                )
            return sum((ops.sum(v) for v in self.model.losses), loss)

    def measure(self):
        """A `Measured` of the model as it is set now."""
        name = f"keras.src.backend.{backend.backend()}.remat_measure"
        engine = importlib.import_module(name)
        given = self.forward, tree.flatten(self.given), self.model.variables
        rows = Rows(self.model)
        by_layer, by_label = collections.Counter(), {}
        for path, count, label in engine.kept_values(*given):
            by_layer[rows.name_of(path)] += count
            if label is not None:
                by_label.setdefault(label, []).append(count)
        return Measured(by_layer, by_label, engine.peak_bytes(*given))

    def plan(self):
        """The plan that the model follows for this batch, or `None`."""
        function = graph_of(self.model)
        policy = policy_of(self.model)
        if function is None or policy is None:
            return None
        inputs = self.given[0]
        if hasattr(function, "_standardize_inputs"):
            inputs = function._standardize_inputs(inputs)
        specs = [as_spec(v) for v in tree.flatten(inputs)]
        return remat_plan.RematPlan(self.model, specs, policy)


def policy_of(model):
    """The policy by which the model's graph is cut, or `None`."""
    setting = setting_of(model)
    if setting is None or isinstance(setting, RematPolicy):
        return setting
    if setting.mode == "full" and setting.layer_types is None:
        return setting.as_policy()
    return None


def names_in(model):
    """The names that policies of the model and its layers keep."""
    found = {}
    for op in operations_of(model):
        policy = setting_of(op)
        if policy is not None and not isinstance(policy, RematPolicy):
            policy = policy.policy
        if policy is not None:
            found.update(dict.fromkeys(policy.names()))
    return list(found)


class Rows:
    """Finds the layer of the model in which a name scope lies."""

    def __init__(self, model):
        self.names = {}
        for layer in reversed(model.layers):
            for part in layer._flatten_layers():
                self.names[getattr(part, "path", None) or part.name] = (
                    layer.name
                )

    def name_of(self, path):
        if LOSS in path.split("/"):
            return "(loss)"
        parts = path.split("/")
        # Some engines put the names of callers before a layer's own path.
        for start in range(len(parts)):
            for stop in range(len(parts), start, -1):
                found = self.names.get("/".join(parts[start:stop]))
                if found is not None:
                    return found
        return "(other)"


@contextlib.contextmanager
def unchanged(model):
    """Puts back what layers hold beside their variables."""
    before = []
    for op in operations_of(model):
        own = vars(op)
        before.append((own, own.get("_remat_setting")))
        for name in ("_losses", "_loss_ids"):
            if name in own:
                before.append((own[name], list(own[name])))
    try:
        yield
    finally:
        for place, value in before:
            restore(place, value)


def restore(place, value):
    if isinstance(place, list):
        place[:] = value
    elif isinstance(place, set):
        place.clear()
        place.update(value)
    elif value is None:
        place.pop("_remat_setting", None)
    else:
        place["_remat_setting"] = value


@contextlib.contextmanager
def switched(model, off):
    """Switches all settings off; or the model's on, if there are none."""
    operations = operations_of(model)
    before = [vars(op).get("_remat_setting") for op in operations]
    on = any(setting_of(op) is not None for op in operations)
    try:
        if off:
            for op in operations:
                vars(op)["_remat_setting"] = False
        elif not on:
            vars(model)["_remat_setting"] = True
        yield
    finally:
        for op, value in zip(operations, before):
            vars(op)["_remat_setting"] = value


def operations_of(model):
    """The model, its layers and the operations of its graphs."""
    found = {}
    for layer in model._flatten_layers():
        found[id(layer)] = layer
        function = graph_of(layer)
        for op in getattr(function, "operations", ()):
            found[id(op)] = op
    return list(found.values())
