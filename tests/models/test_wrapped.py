"""Networks of Flax and Equinox through their apply functions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

import modicum as mo
from helpers.refusals import refused
from helpers.targets import all_of, quick
from modicum.models import Target

M = mo.models
RNG = np.random.default_rng(2)
X = RNG.normal(size=(40, 3))
Y = RNG.integers(0, 3, size=40)
ROWS = mo.Rows(x=X, y=Y)


def flax_linen():
    nn = pytest.importorskip("flax.linen")

    class Net(nn.Module):
        hidden: int = 4

        @nn.compact
        def __call__(self, x):
            return nn.Dense(3)(nn.tanh(nn.Dense(self.hidden)(x)))

    net = Net()
    params = jax.jit(net.init)(jax.random.key(0), X[:1])
    return M.Network(net.apply, params), net, "Dense_0.kernel", Net


def flax_nnx():
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.inner, self.outer = nnx.Linear(3, 4, rngs=rngs), nnx.Linear(4, 3, rngs=rngs)

        def __call__(self, x):
            return self.outer(nnx.tanh(self.inner(x)))

    graph, params = nnx.split(Net(nnx.Rngs(0)), nnx.Param)
    params = nnx.to_pure_dict(params)
    return M.Network(lambda p, x: nnx.merge(graph, p)(x), params), None, "inner.kernel", None


def equinox():
    eqx = pytest.importorskip("equinox")
    net = eqx.nn.MLP(3, 3, 4, 1, activation=jnp.tanh, key=jax.random.key(0))
    params, static = eqx.partition(net, eqx.is_inexact_array)
    apply = lambda p, x: jax.vmap(eqx.combine(p, static))(x)  # noqa: E731
    return M.Network(apply, params), None, "layers.0.weight", None


@pytest.mark.parametrize("make", [flax_linen, flax_nnx, equinox])
def test_network_of_another_library(make, x64):
    net, _, name, _ = make()
    target, t = Target.of(net, ROWS)
    assert target.size == 3 * 4 + 4 + 4 * 3 + 3
    named = net.report(net.start(ROWS))
    assert name in named
    points = target.ravel_reported({k: np.asarray(v)[None] for k, v in named.items()})
    np.testing.assert_array_equal(points[0], t)
    logits = np.asarray(jax.jit(net.apply)(net.start(ROWS), X))
    right = log_softmax(logits, axis=1)[np.arange(40), Y]
    ours = jax.jit(net.log_likelihood)(net.start(ROWS), all_of(ROWS))
    np.testing.assert_allclose(ours, right)
    slope = jax.jit(jax.grad(lambda t: target.log_likelihood(t, all_of(ROWS)).sum()))(t)
    assert np.all(np.isfinite(slope))


@pytest.mark.slow
def test_flax_samples_predicts_and_scores():
    net, _, _, _ = flax_linen()
    post = quick(net, ROWS, draws=20, tune=20)
    assert post["Dense_0.kernel"].shape == (2, 20, 4, 3)
    chances = post.predict({"x": X}).mean
    np.testing.assert_allclose(chances.sum(axis=1), 1)
    found = post.score(ROWS)
    each = chances[np.arange(40), Y]
    assert found.log_density == pytest.approx(np.log(each).mean())
    assert found.accuracy == np.mean(chances.argmax(axis=1) == Y)


def test_identity_follows_the_module_not_its_place_in_memory():
    def identity(net):
        return Target.of(net, ROWS)[0].identity

    net, module, _, kind = flax_linen()
    again = M.Network(kind().apply, net.params)
    assert identity(again) == identity(net)
    other = kind(hidden=5)
    wider = M.Network(other.apply, jax.jit(other.init)(jax.random.key(0), X[:1]))
    assert identity(wider) != identity(net)
    assert identity(M.Network(module.apply, net.params, prior_scale=2)) != identity(net)


def test_convolutions_match_flax(x64):
    nn = pytest.importorskip("flax.linen")
    images = RNG.random((5, 12, 10, 2))

    class Net(nn.Module):
        padding: str

        @nn.compact
        def __call__(self, x):
            for channels in (3, 4):
                x = nn.relu(nn.Conv(channels, (3, 3), padding=self.padding)(x))
                x = nn.max_pool(x, (2, 2), (2, 2))
            x = nn.relu(nn.Dense(6)(x.reshape(x.shape[0], -1)))
            return nn.Dense(3)(x)

    for padding in ("VALID", "SAME"):
        ours = M.CNN(channels=(3, 4), kernel=3, hidden=(6,), padding=padding)
        theta = ours.start(mo.Rows(x=images, y=np.arange(5) % 3))
        layers = {n.replace("conv", "Conv").replace("dense", "Dense"): w for n, w in theta.items()}
        apply = jax.jit(Net(padding).apply)
        outputs = jax.jit(ours.outputs)(theta, images)
        theirs = apply({"params": layers}, images)
        np.testing.assert_allclose(outputs, theirs, rtol=1e-10)
        # negative control: another layout of the kernel is another network
        layers["Conv_0"] = layers["Conv_0"] | {"kernel": theta["conv_0"]["kernel"].swapaxes(0, 1)}
        assert not np.allclose(outputs, apply({"params": layers}, images))


def by_hand(params, x):
    return jnp.tanh(x @ params["in"]) @ params["out"]


PARAMS = {"in": RNG.normal(size=(3, 4)), "out": RNG.normal(size=(4, 3))}


def test_starts_match_init():
    init = lambda key: jax.tree.map(lambda p: jax.random.normal(key, p.shape), PARAMS)  # noqa: E731
    net = M.Network(by_hand, PARAMS, init=init)
    one, other = (net.random_start(ROWS, jax.random.key(k)) for k in (1, 2))
    assert not np.allclose(one["in"], other["in"])
    assert np.array_equal(M.Network(by_hand, PARAMS).random_start(ROWS, None)["in"], PARAMS["in"])


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: M.Network("net", PARAMS), "apply must be a function"),
        (lambda: M.Network(by_hand, {}), "floating-point arrays"),
        (lambda: M.Network(by_hand, PARAMS | {"key": jax.random.key(1)}), "floating-point arrays"),
        (lambda: M.Network(by_hand, PARAMS).check(mo.Rows(x=X, y=Y + 1)), "4 classes"),
        (lambda: M.Network(by_hand, PARAMS).check(mo.Rows(x=X[:, :2], y=Y)), "apply fails"),
        (lambda: M.Network(by_hand, PARAMS, likelihood="gaussian").check(ROWS), "one mean per row"),
        (lambda: M.Network(lambda p, x: x[0], PARAMS).check(ROWS), "vector of logits"),
    ],
)
def test_refusals(make, word):
    refused(mo.ModicumError, word, make)
