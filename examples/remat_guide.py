# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Train in less memory: rematerialization in Keras
#
# A training step keeps what each layer computed until the backward pass has
# used it. Rematerialization drops these values and computes them again: less
# memory for about a third more arithmetic, and the same numbers.
#
# In Colab, build the wheel (`make wheel`), upload it and install it first:
# `%pip install keras-3.15.1+remat.*.whl`. What is printed here was printed on
# JAX on a CPU; set `KERAS_BACKEND` for TensorFlow or torch.

# %%
import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import numpy as np
from IPython.display import Image

import keras
from keras import layers

print(keras.__version__, keras.config.backend())

# %% [markdown]
# ## A model, and what it keeps
#
# Twelve layers that each keep their result.


# %%
def make_model():
    keras.utils.set_random_seed(0)
    inputs = x = keras.Input((64,))
    for k in range(12):
        x = layers.Dense(64, activation="gelu", name=f"dense{k}")(x)
        x = layers.Dropout(0.1, name=f"dropout{k}")(x)
    outputs = layers.Dense(1, name="head")(x)
    model = keras.Model(inputs, outputs, name="guide")
    model.compile(optimizer="sgd", loss="mse")
    return model


def make_data(size):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(size, 64)).astype("float32")
    return x, generator.normal(size=(size, 1)).astype("float32")


BATCH = 1024
x, y = make_data(BATCH)
plain = make_model()

# %% [markdown]
# ## One line

# %%
model = make_model()
model.remat = True

# %% [markdown]
# A plan says what this means, from shapes alone: nothing has run yet. A region
# is what runs twice: its input is kept, the values inside are computed again.

# %%
plan = model.remat_plan(batch_size=BATCH)
plan.summary()

# %% [markdown]
# On the left memory over one step, on the right what else could be had: each
# point is a plan, from the plain model to the one with the least memory.

# %%
Image(plan.plot("plan.png"))

# %% [markdown]
# ## The same numbers
#
# Dropout draws the same mask on the second run, so losses come out equal.

# %%
losses = []
for each in (plain, model):
    keras.utils.set_random_seed(1)
    history = each.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)
    losses.append(history.history["loss"])
for before, after in zip(*losses):
    print(f"{before:.4f} plain, {after:.4f} with regions")
np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)

# %% [markdown]
# ## Measured
#
# A plan predicts. A report takes one step of each, plain and with regions.

# %%
report = keras.utils.remat_report(model, x, y)
report.summary()

# %% [markdown]
# ## Name a budget
#
# The cheapest plan that fits: here half of what the plain step needs. Regions
# may keep matrix products, which are dear to compute again. `fit` prints the
# plan in a line.

# %%
half = model.remat_plan(batch_size=BATCH, memory_budget=0.5)
half.apply()
model.fit(x, y, batch_size=BATCH, verbose=0)
Image(half.plot("half.png"))

# %% [markdown]
# ## Past the memory of the plain model
#
# How large a batch fits where the plain model needs all for this one? A budget
# may also be bytes; its plan is made for the batch that comes.

# %%
largest = plan.max_batch_size(plan.plain_bytes)
print(f"{BATCH} samples plain, {largest} with regions")
model.remat = keras.RematPolicy(memory_budget=plan.plain_bytes)
many = make_data(largest)
model.fit(*many, batch_size=largest, verbose=0)
print(keras.utils.remat_report(model, *many).peak_line())

# %% [markdown]
# ## A policy: keep what is dear
#
# A policy says what a region keeps: all matrix products, or values that layers
# give names to. You name your own by `keras.ops.remat_name`.

# %%
for keep in ("matmuls", ["dense/linear"]):
    model.remat = keras.RematPolicy(keep=keep)
    print(model.remat, keras.utils.remat_report(model, x, y), sep="\n")
