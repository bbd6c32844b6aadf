"""Pretrained architectures of KerasHub, tiny: switched on after construction.

`requirements-hub.txt` tells how to install it. A backbone's units are its
transformer blocks, which are composite layers: regions of leaf layers would
leave the peak almost as it is.
"""

import os

import judge
import numpy as np
import pytest

import keras

backend = keras.backend.backend()
if backend in ("numpy", "openvino"):
    pytest.skip("this backend takes no gradients", allow_module_level=True)
hub = pytest.importorskip(
    "keras_hub", reason="needs pip install --no-deps -r requirements-hub.txt"
)

LAYERS, HEADS, WIDTH, LENGTH, WORDS, BATCH = 3, 2, 16, 24, 32, 4
BLOCK = (LAYERS, HEADS, WIDTH, 4 * WIDTH)


def gpt2(**kwargs):
    backbone = hub.models.GPT2Backbone(
        WORDS, *BLOCK, max_sequence_length=LENGTH, **kwargs
    )
    return hub.models.GPT2CausalLM(backbone, preprocessor=None, **kwargs)


def bert(**kwargs):
    backbone = hub.models.BertBackbone(
        WORDS, *BLOCK, max_sequence_length=LENGTH, **kwargs
    )
    return hub.models.BertTextClassifier(backbone, 3, preprocessor=None)


def gemma(**kwargs):
    backbone = hub.models.GemmaBackbone(
        WORDS, LAYERS, HEADS, 1, WIDTH, 8 * WIDTH, 8, dropout=0.1, **kwargs
    )
    return hub.models.GemmaCausalLM(backbone, preprocessor=None, **kwargs)


def llama(**kwargs):
    backbone = hub.models.LlamaBackbone(WORDS, *BLOCK, 1, **kwargs)
    return hub.models.LlamaCausalLM(backbone, preprocessor=None, **kwargs)


def vit(**kwargs):
    backbone = hub.models.ViTBackbone(
        (16, 16, 3), 4, *BLOCK, dropout_rate=0.1, **kwargs
    )
    return hub.models.ViTImageClassifier(
        backbone, 3, activation=None, preprocessor=None
    )


def diffuser(**kwargs):
    """The part of Stable Diffusion 3 that is trained."""
    from keras_hub.src.models.stable_diffusion_3.mmdit import MMDiT

    return MMDiT(
        2,
        WIDTH,
        LAYERS,
        HEADS,
        position_size=8,
        latent_shape=(8, 8, 4),
        context_shape=(6, WIDTH),
        pooled_projection_shape=(WIDTH,),
        **kwargs,
    )


RANDOM = np.random.default_rng(0)


def tokens():
    mask = np.ones((BATCH, LENGTH), "int32")
    mask[0, LENGTH // 2 :] = 0
    words = RANDOM.integers(0, WORDS, size=(BATCH, LENGTH), dtype="int32")
    return {"token_ids": words, "padding_mask": mask}


def pair():
    return tokens() | {"segment_ids": np.zeros((BATCH, LENGTH), "int32")}


def normal(*shape):
    return RANDOM.normal(size=(BATCH, *shape)).astype("float32")


def noisy():
    return {
        "latent": normal(8, 8, 4),
        "context": normal(6, WIDTH),
        "pooled_projection": normal(WIDTH),
        "timestep": normal(1),
    }


CASES = {
    "gpt2": (gpt2, tokens(), normal(LENGTH, WORDS)),
    "bert": (bert, pair(), normal(3)),
    "gemma": (gemma, tokens(), normal(LENGTH, WORDS)),
    "llama": (llama, tokens(), normal(LENGTH, WORDS)),
    "vit": (vit, normal(16, 16, 3), normal(3)),
    "diffuser": (diffuser, noisy(), normal(8, 8, 4)),
}


# Much like the others; these backends take long to compile.
SLOW = () if backend == "torch" else ("bert", "llama")


@pytest.mark.parametrize("name", CASES)
def test_equal_and_saves(name):
    if name in SLOW and "SLOW_TESTS" not in os.environ:
        pytest.skip("slow on this backend; SLOW_TESTS=1 runs it")
    build, x, y = CASES[name]
    remat = judge.Trained(build, x, y, True)
    judge.assert_equal(judge.Trained(build, x, y, None), remat)
    report = judge.assert_saves(remat, 0.5)
    # Also where the backbone is a nested model, and its encoder one layer.
    if backend != "tensorflow":  # which does not tell its peak
        assert report.remat_peak < 0.7 * report.plain_peak


def test_with_lora():
    build, x, y = CASES["gemma"]

    def lora():
        model = build()
        model.backbone.enable_lora(2)
        return model

    remat = judge.Trained(lora, x, y, True)
    judge.assert_equal(judge.Trained(lora, x, y, None), remat)
    judge.assert_saves(remat, 0.5)


@pytest.mark.parametrize(
    "name, dtype", [("vit", "mixed_bfloat16"), ("llama", "mixed_float16")]
)
def test_with_mixed_precision(name, dtype):
    if backend == "jax" and dtype == "mixed_float16":
        pytest.skip("XLA has no attention in float16 on CPU, also plain")
    build, x, y = CASES[name]

    def optimizer():
        return keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(1e-3), initial_scale=1024.0
        )

    def mixed():
        return build(dtype=dtype)

    remat = judge.Trained(mixed, x, y, True, optimizer)
    plain = judge.Trained(mixed, x, y, None, optimizer)
    judge.assert_equal(plain, remat)
    judge.assert_saves(remat, 0.5)
