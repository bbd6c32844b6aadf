"""Trains a model plain and with remat, and tells whether both are equal.

Deep networks with batch normalization amplify rounding, some weights by
much: the shift before a normalization has no true gradient. How far is far is
therefore measured, for each variable: by a plain run whose weights differ in
the last digits at the start.
"""

import numpy as np

import keras
from keras import ops

if keras.backend.backend() == "jax":
    import jax

    # Compiling takes most of the time of these tests; this halves it.
    jax.config.update("jax_disable_most_optimizations", True)

STEPS = 3
DIGITS = {  # by which the weights of the second plain run differ
    "float32": 1e-6,
    "float16": 1e-3,
    "bfloat16": 1e-2,
}
SLACK = 20  # times that other run
SHARE = 1e-4  # of what training changed


class Trained:
    """Three steps of `train_on_batch` from the same start.

    Args:
        build: Makes the model.
        x: A batch.
        y: Its targets.
        setting: For `model.remat`, after construction.
        optimizer: Makes the optimizer. Defaults to plain SGD.
        loss: Defaults to the mean squared error.
    """

    def __init__(self, build, x, y, setting, optimizer=None, loss="mse"):
        keras.backend.clear_session()
        keras.utils.set_random_seed(0)
        self.x, self.y = x, y
        self.model = build()
        self.start = self.values()
        self.model.remat = setting
        optimizer = optimizer or (lambda: keras.optimizers.SGD(1e-3))
        # XLA takes minutes for some of these models, so only where it must.
        compiled = keras.backend.backend() == "jax"
        self.model.compile(
            optimizer(),
            loss,
            metrics=[],
            weighted_metrics=[],
            jit_compile=compiled,
        )
        self.losses = self.train()
        self.end = self.values()

    def values(self):
        values = [ops.convert_to_numpy(v.value) for v in self.model.variables]
        return [np.array(v, dtype="float64") for v in values]

    def train(self):
        steps = range(STEPS)
        losses = [self.model.train_on_batch(self.x, self.y) for _ in steps]
        return np.array([np.ravel(x)[0] for x in losses])

    def noise(self):
        """How far another start in the last digits leads, by variable."""
        generator = np.random.default_rng(3)
        relative = DIGITS[self.model.compute_dtype]
        start = []
        for v, value in zip(self.model.variables, self.start):
            if v.trainable and "float" in v.dtype:
                digits = generator.standard_normal(value.shape)
                value = value * (1 + relative * digits)
            v.assign(value.astype("float32") if v.trainable else value)
            start.append(value)
        losses = self.train()
        far = [
            np.max(np.abs((b - a) - (d - c)), initial=0)
            for a, b, c, d in zip(self.start, self.end, start, self.values())
        ]
        return np.max(np.abs(losses - self.losses)), far


def assert_equal(plain, remat):
    """Losses, weights, statistics and seeds."""
    loss_noise, noise = plain.noise()
    assert np.all(np.isfinite(plain.losses))
    np.testing.assert_allclose(
        remat.losses, plain.losses, rtol=SHARE, atol=SLACK * loss_noise
    )
    wrong = []
    for i, v in enumerate(plain.model.variables):
        start, end = plain.start[i], plain.end[i]
        assert np.array_equal(start, remat.start[i]), v.path
        gap = np.max(np.abs(end - remat.end[i]), initial=0)
        if "int" in v.dtype:  # a seed, a counter
            allowed = 0
        else:
            change = np.max(np.abs(end - start), initial=0)
            allowed = SHARE * change + SLACK * noise[i] + 1e-7 * spread(end)
        if gap > allowed:
            wrong.append((v.path, gap, allowed))
    assert not wrong, wrong[:5]
    moved = [
        np.any(a != b)
        for v, a, b in zip(plain.model.variables, plain.start, plain.end)
        if v.trainable
    ]
    assert np.mean(moved) > 0.5, "hardly anything was trained"


def spread(x):
    return np.max(np.abs(x), initial=0)


def assert_saves(trained, share):
    """Bytes kept for the backward pass, measured on this backend.

    Args:
        trained: A `Trained`.
        share: What may be left of them.

    Returns:
        The report.
    """
    report = keras.utils.remat_report(trained.model, trained.x)
    ratio = report.remat_bytes / report.plain_bytes
    line = f"{trained.model.name}: keeps {ratio:.2f} of {report.plain_bytes}"
    if report.plain_peak:
        line += f", peak {report.remat_peak / report.plain_peak:.2f}"
    print(line)  # pytest -s shows what was saved
    assert ratio < share, line
    return report
