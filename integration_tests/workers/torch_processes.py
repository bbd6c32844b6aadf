"""Two torch processes (gloo), each with half of the batch.

`DistributedDataParallel` around Keras models, and FSDP2 (`fully_shard`) in
torch modules that Keras regions call. Keras' own layers run no torch hooks and
hold their weights themselves, so that FSDP2 cannot shard those.
"""

import sys

import common
import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import fsdp
from torch.nn.parallel import DistributedDataParallel

import keras

PLAIN = (None, None)
SCOPES = {
    "model": (True, None),
    "layers": (None, {"layer_types": common.Block}),
    "nested": (keras.RematPolicy(levels=2), None),
    "matmuls": (keras.RematPolicy(keep="matmuls"), None),
}


def rows_of(rank):
    half = common.BATCH // 2
    x, y = common.data()
    if rank is not None:
        x, y = (a[rank * half : (rank + 1) * half] for a in (x, y))
    return torch.from_numpy(x), torch.from_numpy(y)


def train(build, how, rank, **options):
    """Trains by hand; gives the runs of blocks, losses and variables."""
    setting, scope = SCOPES.get(how, PLAIN)
    rate = options.pop("rate", 0.2)
    model = common.make(build, setting, norm="layer", rate=rate)
    parallel = model
    if rank is not None:
        parallel = DistributedDataParallel(model, **options)
    x, y = rows_of(rank)
    common.RUNS.clear()
    weights = model.trainable_variables
    losses = []
    for _ in range(common.STEPS):
        model.zero_grad()
        with keras.RematScope(**scope or {"mode": None}):
            outputs = parallel(x, training=True)
        loss = torch.mean((outputs - y) ** 2)
        loss.backward()
        with torch.no_grad():
            model.optimizer.apply([w.value.grad for w in weights], weights)
        losses.append(loss.item())
    return len(common.RUNS), [np.array(losses), *common.numbers(model)]


def data_parallel(rank):
    for build, options in (
        (common.graph, {}),
        (common.graph, {"find_unused_parameters": True}),
        (common.graph, {"static_graph": True}),
        (common.shared, {}),
        (common.Subclassed, {"gradient_as_bucket_view": True}),
    ):
        plain = train(build, "plain", rank, **options)
        single = train(build, "plain", None, rate=0.0)
        alone = train(build, "model", rank, rate=0.0, **options)
        found = [
            compare(train(build, how, rank, **options), plain) for how in SCOPES
        ]
        common.report(
            case=f"{build.__name__} {' '.join(options)}".strip(),
            to_single=common.distance(alone[1][1:], single[1][1:]),
            found=found,
        )


def compare(ours, plain):
    """Block runs of both, and how far the numbers are apart."""
    return [ours[0], plain[0], common.distance(ours[1], plain[1])]


class Part(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(common.WIDTH, 2 * common.WIDTH)
        self.down = torch.nn.Linear(2 * common.WIDTH, common.WIDTH)

    def forward(self, x):
        common.RUNS.append("part")
        x = x + self.down(torch.nn.functional.gelu(self.up(x)))
        return torch.nn.functional.dropout(x, 0.2)


FSDP_WAYS = {
    "remat": keras.remat,
    "matmuls": keras.remat(policy=keras.RematPolicy(keep="matmuls")),
    "wrapped": lambda x: keras.layers.TorchModuleWrapper(x, remat=True),
}


def train_sharded(way, mesh, rank):
    torch.manual_seed(0)
    common.RUNS.clear()
    parts = [Part() for _ in range(common.BLOCKS)]
    for part in parts:
        fsdp.fully_shard(part, mesh=mesh)
    steps = [way(part) for part in parts]
    weights = [w for part in parts for w in part.parameters()]
    optimizer = torch.optim.Adam(weights, 1e-2)
    x, _ = rows_of(rank)
    for _ in range(common.STEPS):
        torch.manual_seed(rank)
        optimizer.zero_grad()
        h = x
        for step in steps:
            h = step(h)
        torch.mean(h**2).backward()
        optimizer.step()
    sharded = [list(w.to_local().shape) for w in weights]
    whole = [w.full_tensor().detach().numpy() for w in weights]
    return len(common.RUNS), whole, sharded


def fully_sharded(rank):
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    plain = train_sharded(lambda part: part, mesh, rank)
    ours = [train_sharded(way, mesh, rank) for way in FSDP_WAYS.values()]
    found = [compare(x, plain) for x in ours]
    common.report(case="fully_shard", sharded=ours[0][2], found=found)


def main(address, rank):
    dist.init_process_group(
        "gloo", init_method=f"tcp://{address}", rank=rank, world_size=2
    )
    data_parallel(rank)
    fully_sharded(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
