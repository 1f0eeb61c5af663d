# SPDX-License-Identifier: Apache-2.0
"""Linear regression with JAX: every rank has data of its own, and the gradients are averaged.

    tutti run -n 4 python3 regression_jax.py

JAX's arrays in the host's memory come in by DLPack without a copy, and results are arrays of JAX.
"""

import jax
import jax.numpy as jnp
import numpy as np

import tutti.numpy as hvd

hvd.init()
inputs = jax.random.normal(jax.random.PRNGKey(hvd.rank()), (100, 2))
targets = inputs @ jnp.array([2.0, -3.0]) + 0.5


def loss(model):
    return jnp.mean((inputs @ model["slope"] + model["offset"] - targets)**2)


gradients_of = jax.jit(jax.grad(loss))
model = {"slope": jnp.zeros(2), "offset": jnp.zeros(())}
for step in range(100):
    leaves, tree = jax.tree.flatten(gradients_of(model))
    gradients = jax.tree.unflatten(tree, hvd.grouped_allreduce(leaves, name="gradients"))
    model = jax.tree.map(lambda value, gradient: value - 0.2 * gradient, model, gradients)

# The gradients were the same everywhere, and so are the models.
slopes = hvd.allgather(model["slope"][None], name="slopes")
assert isinstance(slopes, jax.Array), type(slopes)
assert all(np.array_equal(slope, slopes[0]) for slope in slopes)
assert np.allclose(slopes[0], [2, -3], atol=1e-3) and np.allclose(model["offset"], 0.5, atol=1e-3)
if hvd.rank() == 0:
    print(f"{hvd.size()} ranks: slope {slopes[0]}, offset {model['offset']:.3f}")
hvd.shutdown()
