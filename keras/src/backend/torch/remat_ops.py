"""torch's operations: of which kind they are, what they write and share."""

import torch

aten = torch.ops.aten
PRODUCTS = {aten.mm: False, aten.addmm: False, aten.mv: False}
PRODUCTS.update({aten.bmm: True, aten.baddbmm: True})
CONVOLUTIONS = {aten.convolution, aten.cudnn_convolution}
ATTENTIONS = {
    aten._scaled_dot_product_flash_attention,
    aten._scaled_dot_product_flash_attention_for_cpu,
    aten._scaled_dot_product_efficient_attention,
    aten._scaled_dot_product_cudnn_attention,
}
# What torch's hooks do too, and what looks at a tensor without data.
UNCOUNTED = {aten.detach, torch.ops.prim.device}


def written(func, args, kwargs):
    """The tensors that an operation changes in place."""
    if not func._schema.is_mutable:
        return []
    given = dict(zip((a.name for a in func._schema.arguments), args))
    given.update(kwargs)
    values = [
        given.get(a.name)
        for a in func._schema.arguments
        if a.alias_info is not None and a.alias_info.is_write
    ]
    lists = [v if isinstance(v, (list, tuple)) else [v] for v in values]
    return [x for v in lists for x in v if isinstance(x, torch.Tensor)]


def shares_memory(func):
    """Whether results are views, or arguments that were changed in place."""
    return any(r.alias_info is not None for r in func._schema.returns)


def kind_of(func):
    packet = func.overloadpacket
    if packet in PRODUCTS:
        return "matmul", PRODUCTS[packet]
    if packet in CONVOLUTIONS:
        return "conv", False
    if packet in ATTENTIONS:
        return "attention", True
    return str(packet), False


def first_of(x):
    return x[0] if isinstance(x, (tuple, list)) and x else x


def has_tensor(x):
    return isinstance(first_of(x), torch.Tensor)


def spec_of(x):
    x = first_of(x)
    return tuple(x.shape), str(x.dtype).removeprefix("torch.")


def map_tensors(f, value):
    if isinstance(value, (tuple, list)):
        return type(value)(map_tensors(f, v) for v in value)
    return f(value) if isinstance(value, torch.Tensor) else value


def flat_tensors(value):
    if isinstance(value, (tuple, list)):
        return [x for v in value for x in flat_tensors(v)]
    return [value] if isinstance(value, torch.Tensor) else []
