"""Collectives of JAX over all GPUs, driven by one process."""

import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402


n = jax.device_count()
assert jax.default_backend() == "gpu" and n > 1, f"JAX sees {jax.devices()}"
for count in (1024, 4 << 20):  # XLA has a kernel of its own for small ones
    x = jnp.arange(n * count, dtype=jnp.float32).reshape(n, count) % 1000
    host = np.asarray(x)
    of = {
        "psum": (lambda v: jax.lax.psum(v, "i"), np.tile(host.sum(0), (n, 1))),
        "all_gather": (lambda v: jax.lax.all_gather(v, "i"), np.tile(host, (n, 1, 1))),
        "psum_scatter": (lambda v: jax.lax.psum_scatter(v, "i", tiled=True), host.sum(0).reshape(n, -1)),
        "all_to_all": (lambda v: jax.lax.all_to_all(v.reshape(n, -1), "i", 0, 0),
                       host.reshape(n, n, -1).swapaxes(0, 1)),
        "ppermute": (lambda v: jax.lax.ppermute(v, "i", [(k, (k + 1) % n) for k in range(n)]), np.roll(host, 1, axis=0)),
    }
    for name, (function, wanted) in of.items():
        got = np.asarray(jax.pmap(function, axis_name="i")(x))
        assert np.array_equal(got, wanted), f"{name} of {count}: {got.flatten()[:4]}, not {wanted.flatten()[:4]}"
