"""What policies keep, beside the policies of the engines themselves.

    python benchmarks/policies.py BACKEND [--blocks 12] [--out rows.json]

A GPT with one region around each block. Only the checkpoint differs: that of
the engine with its own policy, or `keras.remat` with ours. TensorFlow has no
policies of its own. Counters as in `measure.py`.
"""

import argparse
import functools
import json
import os
import warnings

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("backend", choices=("jax", "tensorflow", "torch"))
parser.add_argument("--blocks", type=int, default=12)
parser.add_argument("--width", type=int, default=128)
parser.add_argument("--out")
OPTIONS = parser.parse_args()
os.environ["KERAS_BACKEND"] = OPTIONS.backend

import measure  # noqa: E402

measure.prepare()

import by_hand  # noqa: E402
import models  # noqa: E402

import keras  # noqa: E402

KEEPS = ("matmuls", "matmuls_no_batch")


def jax_way(keep):
    import jax

    policies = jax.checkpoint_policies
    policy = {
        "matmuls": policies.dots_saveable,
        "matmuls_no_batch": policies.dots_with_no_batch_dims_saveable,
    }[keep]

    return functools.partial(by_hand.jax_checkpoint, policy=policy)


def torch_way(keep):
    from torch.utils import checkpoint

    saved, choice = torch_products(keep), checkpoint.CheckpointPolicy

    def policy(context, op, *args, **kwargs):
        return choice.MUST_SAVE if op in saved else choice.PREFER_RECOMPUTE

    contexts = functools.partial(
        checkpoint.create_selective_checkpoint_contexts, policy
    )
    return functools.partial(by_hand.torch_to_the_end, context_fn=contexts)


def torch_products(keep):
    import torch

    aten = torch.ops.aten
    found = {aten.mm.default, aten.addmm.default, aten.convolution.default}
    if keep == "matmuls":
        found |= {aten.bmm.default, aten.baddbmm.default}
        found |= {
            getattr(aten, f"_scaled_dot_product_{kind}_attention").default
            for kind in ("flash", "efficient", "cudnn")
        }
        found.add(
            aten._scaled_dot_product_flash_attention_for_cpu.default,
        )
    return found


def our_way(keep):
    def way(section, given):
        return keras.remat(section, policy=keep)(*given)

    return way


BY_HAND = {"jax": jax_way, "torch": torch_way}


def strategies():
    """Pairs of a label and a function from a case to the model to train."""
    yield "plain", lambda case: case.model
    for keep in KEEPS:
        if OPTIONS.backend in BY_HAND:
            way = BY_HAND[OPTIONS.backend](keep)
            yield f"{keep}, by hand", by_hand.strategy(way)
        yield keep, by_hand.strategy(our_way(keep))
        yield (f"{keep}, `model.remat`", functools.partial(whole, keep=keep))


def whole(case, keep):
    case.model.remat = keras.RematPolicy(keep=keep)
    return case.model


def measured(apply):
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    case = models.gpt(OPTIONS.blocks, OPTIONS.width)
    model = apply(case)
    model.compile(
        keras.optimizers.SGD(1e-4),
        case.loss,
        jit_compile=OPTIONS.backend == "jax",
    )
    if not model.built:
        model(case.x)
    return measure.of_step(model, case.x, case.y)


def main():
    warnings.filterwarnings("ignore")
    if OPTIONS.backend == "torch":
        import torch

        torch.set_num_threads(1)
    rows = {}
    for label, apply in strategies():
        usage = measured(apply)
        rows[label] = {"peak": usage.peak, "flops": usage.flops}
        print(row(label, rows[label], rows["plain"]), flush=True)
    if OPTIONS.out:
        with open(OPTIONS.out, "w") as f:
            json.dump(rows, f)


def row(label, found, plain):
    if found["peak"] is None:
        return f"| {label} | - | - | - |"
    peak, ratio = found["peak"] / 2**20, found["peak"] / plain["peak"]
    flops = "-"
    if found["flops"]:
        flops = f"{found['flops'] / plain['flops']:.2f}"
    return f"| {label} | {peak:.1f} MiB | {ratio:.2f} | {flops} |"


main()
