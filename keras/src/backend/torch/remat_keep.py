"""Keeps chosen values of a region on torch, by watching its operations.

The first run counts the operations below autograd and keeps the results that
the policy wants, by number. The second run counts again, and where a result
was kept it is given back instead of being computed.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

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

_open = []


class Keeper(TorchDispatchMode):
    """Runs operations, and keeps the results that the policy wants."""

    def __init__(self, policy):
        super().__init__()
        self.policy = policy
        self.kept = {}
        self.count = 0
        self.makers = {}

    def __enter__(self):
        _open.append(self)
        return super().__enter__()

    def __exit__(self, *args):
        _open.remove(self)
        self.makers = None
        return super().__exit__(*args)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket is aten.detach:  # also made by torch's hooks
            return func(*args, **(kwargs or {}))
        self.refuse_changes(func, args)
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.makers.setdefault(address(out), (self.count, out.detach))
        op, has_batch = kind_of(func)
        if has_tensor(out) and self.policy.keeps(
            op, has_batch, None, lambda: spec_of(out)
        ):
            self.keep(self.count, out, None)
        self.count += 1
        return out

    def refuse_changes(self, func, args):
        """A kept value that is changed in place would be changed twice."""
        if not func._schema.is_mutable or not isinstance(args[0], torch.Tensor):
            return
        maker = self.makers.get(address(args[0]))
        if maker is not None and maker[0] in self.kept:
            raise RuntimeError(
                "A value that a `RematPolicy` keeps must not be changed in "
                f"place. Received: operation {func} on a kept value. Use the "
                "operation that makes a new tensor."
            )

    def keep(self, number, value, name):
        on_host = self.policy.offloads(name)
        self.kept[number] = map_tensors(
            lambda x: to_host(x) if on_host else x.detach(), value
        )

    def keep_by_name(self, x, name):
        maker = self.makers.get(address(x))
        if maker is not None and self.policy.keeps(
            "name", False, name, lambda: spec_of(x)
        ):
            number, detach = maker
            self.keep(number, detach(), name)

    def giver(self):
        return Giver(self.kept)


class Giver(TorchDispatchMode):
    """Runs operations again, but gives kept results back."""

    def __init__(self, kept):
        super().__init__()
        self.kept = kept

    def __enter__(self):
        self.count = 0
        return super().__enter__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket is aten.detach:
            return func(*args, **(kwargs or {}))
        number = self.count
        self.count += 1
        if number in self.kept:
            return map_tensors(from_host, self.kept[number])
        return func(*args, **(kwargs or {}))


def name_value(x, name):
    if _open:
        _open[-1].keep_by_name(x, name)
    return x


def kind_of(func):
    packet = func.overloadpacket
    if packet in PRODUCTS:
        return "matmul", PRODUCTS[packet]
    if packet in CONVOLUTIONS:
        return "conv", False
    if packet in ATTENTIONS:
        return "attention", True
    return str(packet), False


def address(x):
    return x.untyped_storage().data_ptr() or id(x)


def has_tensor(x):
    x = x[0] if isinstance(x, (tuple, list)) and x else x
    return isinstance(x, torch.Tensor)


def spec_of(x):
    x = x if isinstance(x, torch.Tensor) else x[0]
    return tuple(x.shape), str(x.dtype).removeprefix("torch.")


def map_tensors(f, value):
    if isinstance(value, (tuple, list)):
        return type(value)(map_tensors(f, v) for v in value)
    return f(value) if isinstance(value, torch.Tensor) else value


def to_host(x):
    """A copy in pinned memory of the host, made beside the computation."""
    if x.device.type == "cpu":
        return x.detach()
    copy = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
    copy.copy_(x.detach(), non_blocking=True)
    copy._remat_device = x.device
    return copy


def from_host(x):
    device = getattr(x, "_remat_device", None)
    return x.detach() if device is None else x.to(device, non_blocking=True)
