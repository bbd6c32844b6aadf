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
# In Colab, build the wheel (`make wheel`) and install it first:
# `%pip install keras-3.15.1+remat.*.whl`

# %%
import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import numpy as np

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
    model = keras.Model(inputs, layers.Dense(1, name="head")(x))
    model.compile(optimizer="sgd", loss="mse")
    return model


generator = np.random.default_rng(0)
x = generator.normal(size=(256, 64)).astype("float32")
y = generator.normal(size=(256, 1)).astype("float32")

plain = make_model()

# %% [markdown]
# ## One line

# %%
model = make_model()
model.remat = True

# %% [markdown]
# A plan says what this means, from shapes alone: nothing has run yet.

# %%
plan = model.remat_plan(batch_size=256)
plan.summary()

# %% [markdown]
# ## The same numbers
#
# Dropout draws the same mask on the second run, so weights come out equal.

# %%
losses = []
for each in (plain, model):
    keras.utils.set_random_seed(1)
    history = each.fit(x, y, batch_size=256, epochs=2, verbose=0)
    losses.append(history.history["loss"])
print(losses)
np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)

# %% [markdown]
# ## Name a budget
#
# The cheapest plan that fits: here half of what the plain step needs.

# %%
half = model.remat_plan(batch_size=256, memory_budget=0.5)
print(f"{half.plain_bytes} bytes plain, {half.predicted_bytes} planned")
print(f"{half.predicted_extra_flops / half.plain_flops:.0%} more arithmetic")
half.apply()
model.fit(x, y, batch_size=256, verbose=0)

# %% [markdown]
# ## How large a batch would fit?

# %%
print(half.max_batch_size("4MiB"))

# %% [markdown]
# ## A policy: keep what is dear
#
# Matrix products are kept and only the cheap rest runs again.

# %%
model.remat = keras.RematPolicy(keep="matmuls")
model.fit(x, y, batch_size=256, verbose=0)
