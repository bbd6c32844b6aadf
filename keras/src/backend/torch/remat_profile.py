"""What an operation keeps for its backward pass on torch, from shapes alone.

The operation runs on fake tensors, which have shapes, dtypes and storages but
no memory, under hooks that see every tensor which autograd saves. Views of one
storage are one value.
"""

import math
import weakref

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from keras.src.backend.common import standardize_dtype
from keras.src.backend.common.stateless_scope import StatelessScope
from keras.src.backend.torch import remat_keep
from keras.src.backend.torch import remat_watch
from keras.src.backend.torch.core import get_device
from keras.src.backend.torch.core import to_torch_dtype
from keras.src.backend.torch.remat_buffers import copied
from keras.src.backend.torch.remat_workspace import workspace

# The optimizer runs when all gradients are there.
UPDATES_AT_ONCE = False
STEPS_ALIKE = True
KEPT_STAYS = False
# What a loss and its gradient take at once, over the size of the results.
LOSS_COPIES = 5
aten = torch.ops.aten
SEED_TYPES = (torch.uint8, torch.int32, torch.int64, torch.uint32)
READ_NUMBER = aten._local_scalar_dense.default


@torch._dynamo.disable
def trace(call, inputs, variables):
    """Runs `call` on fake tensors, as the forward run of training.

    Args:
        call: Takes a list of tensors, returns a flat list of tensors.
        inputs: List of `(shape, dtype, differentiable)`.
        variables: The Keras variables that `call` reads or writes.

    Returns:
        Dict. `outputs`: list of `(shape, dtype, bytes)`. `aliases`: for each
        output the input that it shares memory with, or `None`. `saved_inputs`
        and `saved_outputs`: indices of those that the backward pass reads;
        `internal`: bytes of all else that it reads but for variables.
        `flops`: arithmetic of the forward run. `matmuls`: bytes of the results
        of matrix products and convolutions. `scratch`: bytes that are there
        only while the forward or the backward pass runs.
    """
    counter = Counter()
    saved = Saved(counter.need)
    with torch.enable_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        given = [fake(*x).clone() for x in inputs]
        values = [fake(v.shape, v.dtype, v.trainable) for v in variables]
        counter.ignore([*given, *values])
        state = list(zip(variables, values))
        with StatelessScope(state_mapping=state), saved.hooks(), counter:
            with remat_watch.watched_by(counter), copied():
                outputs = call(list(given))
        for y in outputs:
            if logits_of(y) is not None:
                saved.add(logits_of(y))
        found = describe(saved, given, values, outputs)
        found |= {key: counter.found[key] for key in ("flops", "matmuls")}
        found["made"] = made(counter)
        saved.storages.clear()
        peak = counter.peak
        with counter:
            start = loss_of(outputs)
            del outputs, y
            grads = backward(start, [*given, *values], counter)
        peak = max(peak, counter.peak - grads)
        found["scratch"] = max(0, peak - own_residuals(found))
        return found


def loss_of(outputs):
    """Some number that depends on all outputs; holds none of them."""
    return sum((y * 1.0).sum() for y in outputs if y.requires_grad)


def backward(loss, wanted, counter):
    """Runs the backward pass; returns the bytes of weight gradients."""
    counter.peak = counter.live
    wanted = [x for x in wanted if x.requires_grad]
    if wanted and isinstance(loss, torch.Tensor):
        torch.autograd.grad(loss, wanted, allow_unused=True)
    return sum(storage_bytes(x) for x in wanted if x.is_leaf)


def own_residuals(found):
    sizes = [size for _, _, size in found["outputs"]]
    return found["internal"] + sum(sizes[i] for i in found["saved_outputs"])


def fake(shape, dtype, differentiable):
    x = torch.empty(
        tuple(shape), dtype=to_torch_dtype(dtype), device=get_device()
    )
    return x.requires_grad_(differentiable and x.is_floating_point())


class Saved:
    """Collects the storages that autograd keeps."""

    def __init__(self, note=lambda: None):
        self.storages = {}  # Alive, so that no storage's address comes again.
        self.note = note

    def hooks(self):
        return torch.autograd.graph.saved_tensors_hooks(self.pack, lambda x: x)

    def pack(self, x):
        self.note()
        if isinstance(x, torch.Tensor):
            self.add(x)
            logits = logits_of(x)
            if logits is not None:
                self.add(logits)
        return x

    def add(self, x):
        storage = x.untyped_storage()
        self.storages[storage._cdata] = storage

    def sizes(self):
        return {k: int(s.nbytes()) for k, s in self.storages.items()}


def logits_of(x):
    """What Keras' sigmoid and softmax keep as an attribute of their result."""
    return getattr(x, "_keras_logits", None)


def key_of(x):
    return x.untyped_storage()._cdata


def storage_bytes(x):
    return int(x.untyped_storage().nbytes())


def describe(saved, inputs, values, outputs):
    sizes = saved.sizes()
    came_in = {key_of(x): i for i, x in enumerate(inputs)}
    went_out = {}
    for i, y in enumerate(outputs):
        went_out.setdefault(key_of(y), []).append(i)
    outside = set(came_in) | {key_of(v) for v in values}
    internal = 0
    for key, size in sizes.items():
        if key in outside:
            continue
        seen = sum(own_bytes(outputs[i]) for i in went_out.get(key, ()))
        internal += max(0, size - seen)
    return {
        "outputs": [
            (tuple(y.shape), standardize_dtype(y.dtype), own_bytes(y))
            for y in outputs
        ],
        "aliases": [came_in.get(key_of(y)) for y in outputs],
        "saved_inputs": sorted(came_in[k] for k in came_in if k in sizes),
        "saved_outputs": [
            i for i, y in enumerate(outputs) if key_of(y) in sizes
        ],
        "internal": internal,
    }


def own_bytes(x):
    """Bytes of a tensor; of one that repeats elements, of its storage."""
    return min(math.prod(x.shape) * x.element_size(), storage_bytes(x))


class Counter(TorchDispatchMode):
    """Counts arithmetic, and the bytes that are alive."""

    def __init__(self):
        super().__init__()
        self.found = {"flops": 0, "matmuls": 0}
        self.made, self.needed = [], 0
        self.makers = {}  # Storages, and the number of what filled them.
        self.live = self.peak = 0
        self.sizes = {}

    def need(self):
        """A second run goes on to here, at the least."""
        self.needed = len(self.made)

    def name(self, x, name):
        """Names the result that `x` is a view of, or else a copy of it."""
        number = self.makers.get(key_of(x), -1)
        if number < 0 or self.made[number][4] != remat_keep.spec_of(x)[1]:
            spec = remat_keep.spec_of(x)
            self.made.append(["name", False, (), *spec, own_bytes(x), 0])
            number = len(self.made) - 1
        self.made[number][2] += (name,)
        return x

    def ignore(self, tensors):
        self.sizes.update((key_of(x), 0) for x in tensors)

    def add(self, x):
        storage = x.untyped_storage()
        if storage._cdata not in self.sizes:
            size = self.sizes[storage._cdata] = int(storage.nbytes())
            self.live += size
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self.release, storage._cdata)

    def release(self, key):
        self.live -= self.sizes.pop(key, 0)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        try:
            out = func(*args, **(kwargs or {}))
        except DataDependentOutputException:
            # A number that is read out. Of integers it is a seed, which sets
            # no size; a length that is known is a constant and can be read.
            if func is READ_NUMBER and args[0].dtype in SEED_TYPES:
                return 0
            raise
        results = out if isinstance(out, (tuple, list)) else (out,)
        results = [x for x in results if isinstance(x, torch.Tensor)]
        if not results or is_view(func):
            return out
        is_new = key_of(results[0]) not in self.sizes
        for x in results:
            self.add(x)
        self.peak = max(self.peak, self.live + workspace(func, args))
        arithmetic, is_product = flops(func, args, kwargs or {}, out, results)
        made = sum(storage_bytes(x) for x in results)
        self.found["flops"] += arithmetic
        self.found["matmuls"] += made * is_product
        if is_new and not remat_keep.shares_memory(func):
            self.add_made(func, results, made, arithmetic)
        return out

    def add_made(self, func, results, count, arithmetic):
        kind = remat_keep.kind_of(func)
        whole = len(results) == 1 or kind[0] == "attention"
        self.makers.update((key_of(x), -1) for x in results[whole:])
        if whole:
            self.makers[key_of(results[0])] = len(self.made)
        spec = remat_keep.spec_of(results)
        self.made.append([*kind, (), *spec, count, arithmetic])


def flops(func, args, kwargs, out, results):
    """Arithmetic of an operation, and whether it is a product."""
    packet = func._overloadpacket
    if packet in flop_registry:
        return flop_registry[packet](*args, **kwargs, out_val=out), True
    if packet in ATTENTION:
        return attention_flops(*args), True
    if packet in NO_ARITHMETIC:
        return 0, False
    return max(x.numel() for x in results), False


def made(counter):
    """What policies choose from, see `Made` in `profile_policy.py`.

    All operations run again up to the last one that saves something.
    """
    values = [(*value, ()) for value in counter.made]
    return values, range(counter.needed), range(len(values))


ATTENTION = (
    aten._scaled_dot_product_flash_attention_for_cpu,
    aten._scaled_dot_product_attention_math_for_mps,
)
NO_ARITHMETIC = (
    aten._to_copy,
    aten.arange,
    aten.cat,
    aten.clone,
    aten.constant_pad_nd,
    aten.copy_,
    aten.empty,
    aten.embedding,
    aten.full,
    aten.gather,
    aten.index,
    aten.index_select,
    aten.ones,
    aten.zeros,
)


def is_view(func):
    return any(
        r.alias_info is not None and not r.alias_info.is_write
        for r in func._schema.returns
    )


def attention_flops(query, key, value, *args):
    batch = math.prod(query.shape[:-2])
    pairs = query.shape[-2] * key.shape[-2]
    return 2 * batch * pairs * (query.shape[-1] + value.shape[-1])


def free_memory():
    """Bytes free on the default device, or `None` if it cannot be told."""
    if get_device().startswith("cuda") and torch.cuda.is_available():
        cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return torch.cuda.mem_get_info()[0] + cached
    return None
