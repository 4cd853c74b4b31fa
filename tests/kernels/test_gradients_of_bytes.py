"""Rows stored as bytes give a network the same gradient as scaled rows."""

import jax
import numpy as np

import modicum as mo
from modicum.kernels.gradients import Minibatch
from modicum.methods.method import Parameters
from modicum.models import Target


def test_a_batch_of_bytes_is_scaled_as_the_network_says():
    rng = np.random.default_rng(1)
    pixels, digits = rng.integers(0, 256, size=(40, 6)), np.arange(40) % 3
    net, found = mo.models.MLP(hidden=(4,), classes=3), {}
    held = {
        "bytes": mo.Rows(x=pixels, y=digits, dtype="uint8"),
        "scaled": mo.Rows(x=pixels / 255, y=digits),
        "unscaled": mo.Rows(x=pixels.astype(float), y=digits),  # negative control
    }
    with jax.enable_x64(True):
        for name, rows in held.items():
            target, start = Target.of(net, rows)
            estimator = Minibatch().bind(target, "float64")
            context = Parameters(np.zeros_like(start), np.ones_like(start))
            batch = rows.slice(0, 40) | {"probability": np.full(40, 1 / 40)}

            @jax.jit
            def gradient(t, batch, estimator=estimator, context=context):
                return estimator.gradient(t, estimator.prepare(batch, context), None, context)

            found[name] = np.asarray(gradient(start, batch))
    np.testing.assert_allclose(found["bytes"], found["scaled"], rtol=1e-5, atol=1e-6)
    assert not np.allclose(found["bytes"], found["unscaled"], rtol=0.1)
