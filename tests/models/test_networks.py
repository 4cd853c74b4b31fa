"""Networks as models, ours and those of Flax and Equinox: forward passes, types, starts, names."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

import modicum as mo
from helpers.cases import cases
from helpers.refusals import refused
from helpers.slow import slowly
from helpers.targets import all_of, quick
from modicum.models import Target
from modicum.models.over_draws import ModelPredictor

M = mo.models
RNG = np.random.default_rng(1)
PIXELS = RNG.integers(0, 256, size=(12, 8, 8), dtype=np.uint8)
LABELS = np.arange(12) % 3
SMALL_CNN = M.CNN(channels=(3, 4), kernel=3, pool=2, hidden=(5,), padding="SAME")
NETS = {
    "mlp": M.MLP(hidden=(6,)),
    "gaussian": M.MLP(hidden=(6, 5), likelihood="gaussian", noise_scale=0.7, activation="tanh"),
    "cnn": SMALL_CNN,
}


def test_a_network_of_ones_own_is_not_described_in_a_file():
    net = M.Network(lambda p, x: x @ p["w"], {"w": np.zeros((2, 3))})
    assert ModelPredictor(net).to_dict() is None


# Compiled once for all tests of this file, instead of operation by operation.
log_likelihood = jax.jit(lambda net, theta, b: net.log_likelihood(theta, b), static_argnums=0)
expected = jax.jit(lambda net, theta, batch: net.expected(theta, batch), static_argnums=0)


def image_rows(**kwargs):
    return mo.Rows(x=PIXELS, y=LABELS, **({"dtype": "uint8"} | kwargs))


@pytest.fixture(params=["mlp", "cnn", *slowly("gaussian")])
def net(request):
    return NETS[request.param]


@pytest.fixture(params=NETS)
def every_net(request):
    return NETS[request.param]


def test_log_densities_are_normalised(every_net, x64):
    net, rows = every_net, image_rows()
    theta, batch = net.start(rows), all_of(rows)
    if net.likelihood == "categorical":
        each = [log_likelihood(net, theta, batch | {"y": np.full(12, k)}) for k in range(3)]
        np.testing.assert_allclose(np.exp(each).sum(axis=0), 1.0)
        np.testing.assert_allclose(expected(net, theta, batch), np.exp(each).T)
    else:
        y = np.linspace(-30, 30, 20_001)
        one = {"x": np.repeat(PIXELS[:1], len(y), axis=0), "y": y}
        assert np.trapezoid(np.exp(log_likelihood(net, theta, one)), y) == pytest.approx(1)
        mean = np.trapezoid(y * np.exp(log_likelihood(net, theta, one)), y)
        assert mean == pytest.approx(float(expected(net, theta, one)[0]))


def test_prior_is_a_normal_on_every_weight(x64):
    from scipy.stats import norm

    net = M.MLP(hidden=(6,), prior_scale=0.5)
    theta = net.start(image_rows())
    right = sum(norm(scale=0.5).logpdf(leaf).sum() for leaf in jax.tree.leaves(theta))
    assert float(jax.jit(net.log_prior)(theta)) == pytest.approx(right)


def test_bytes_are_scaled_pixels(net, x64):
    held = image_rows()
    assert held.nbytes == 12 * 65
    real = mo.Rows(x=PIXELS / 255.0, y=LABELS)
    unscaled = mo.Rows(x=PIXELS.astype(float), y=LABELS)
    theta = net.start(held)
    right = log_likelihood(net, theta, all_of(real))
    np.testing.assert_allclose(log_likelihood(net, theta, all_of(held)), right, rtol=1e-12)
    told = mo.models.MLP(**{**vars(net), "scale": 1 / 255}) if type(net) is M.MLP else None
    if told is not None:
        np.testing.assert_allclose(log_likelihood(told, theta, all_of(unscaled)), right, rtol=1e-12)
    # negative control: unscaled pixels are another data set
    assert not np.allclose(log_likelihood(net, theta, all_of(unscaled)), right)


@pytest.mark.parametrize("shape", [(12, 64), (12, 8, 8), *slowly(((12, 8, 8, 1),))])
def test_images_come_flat_or_with_axes(net, shape, x64):
    theta = net.start(image_rows())
    rows = mo.Rows(x=PIXELS.reshape(shape), y=LABELS, dtype="uint8")
    net.check(rows)
    assert [np.shape(a) for a in jax.tree.leaves(net.start(rows))] == [
        np.shape(a) for a in jax.tree.leaves(theta)
    ]
    right = log_likelihood(net, theta, all_of(image_rows()))
    np.testing.assert_allclose(log_likelihood(net, theta, all_of(rows)), right)


def test_starts_differ_by_key_and_are_scaled_to_their_inputs():
    rows = mo.Rows(x=np.zeros((2, 784)), y=[0, 1])
    net = M.MLP(hidden=(400,))
    start = jax.jit(lambda seed: net.random_start(rows, jax.random.key(seed))["dense_0"]["kernel"])
    one, other, again = (np.asarray(start(seed)) for seed in (1, 2, 1))
    assert np.array_equal(one, again)
    assert abs(np.corrcoef(np.ravel(one), np.ravel(other))[0, 1]) < 0.01
    assert np.std(one) == pytest.approx(np.sqrt(2 / 784), rel=0.01)
    tanh = M.MLP(hidden=(400,), activation="tanh").start(rows)["dense_0"]["kernel"]
    assert np.std(tanh) == pytest.approx(np.sqrt(1 / 784), rel=0.01)
    assert np.array_equal(net.start(rows)["dense_1"]["bias"], np.zeros(2))
    with jax.enable_x64(True):  # the same start whatever the precision
        assert np.array_equal(start(1), one)


def test_names_and_back(net):
    rows = image_rows()
    target, t = Target.of(net, rows)
    named = net.report(net.start(rows))
    assert {"dense_0.kernel", "dense_0.bias"} <= named.keys()
    points = target.ravel_reported({k: np.asarray(v)[None] for k, v in named.items()})
    np.testing.assert_array_equal(points[0], t)
    assert hash(net) == hash(type(net)(**vars(net)))
    assert net.identity() != type(net)(**{**vars(net), "prior_scale": 2.0}).identity()


@cases(
    "make word",
    (lambda: M.MLP(hidden=(0,)), "hidden"),
    (lambda: M.MLP(activation="rleu"), "did you mean 'relu'"),
    (lambda: M.MLP(likelihood="poisson"), "likelihood"),
    (lambda: M.MLP(classes=1), "classes"),
    (lambda: M.MLP(prior_scale=0), "prior_scale"),
    (lambda: M.MLP(scale=0), "scale"),
    (lambda: M.CNN(padding="same"), "padding"),
    (lambda: M.CNN(kernel=0), "kernel"),
    (lambda: M.CNN(image=(28,)), "image"),
    (lambda: M.CNN().check(image_rows()), "nothing is left"),
    (lambda: M.MLP().check(mo.Rows(x=PIXELS, y=np.zeros(12))), "single class"),
    (lambda: M.MLP().check(mo.Rows(x=PIXELS, y=LABELS, offset=LABELS)), "offset"),
    (lambda: SMALL_CNN.check(mo.Rows(x=np.zeros((12, 63)), y=LABELS)), "not an image"),
    (lambda: M.CNN(image=(9, 9)).check(image_rows()), "not an image of shape"),
    (lambda: Target.of(M.Softmax(), image_rows()), "held as bytes"),
)
def test_refusals(make, word):
    refused(mo.ModicumError, word, make)


# Networks of Flax and Equinox, by their apply functions --------------------------------------


OTHER = np.random.default_rng(2)
X = OTHER.normal(size=(40, 3))
Y = OTHER.integers(0, 3, size=40)
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
    images = OTHER.random((5, 12, 10, 2))

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


PARAMS = {"in": OTHER.normal(size=(3, 4)), "out": OTHER.normal(size=(4, 3))}


def test_starts_match_init():
    init = lambda key: jax.tree.map(lambda p: jax.random.normal(key, p.shape), PARAMS)  # noqa: E731
    net = M.Network(by_hand, PARAMS, init=init)
    one, other = (net.random_start(ROWS, jax.random.key(k)) for k in (1, 2))
    assert not np.allclose(one["in"], other["in"])
    assert np.array_equal(M.Network(by_hand, PARAMS).random_start(ROWS, None)["in"], PARAMS["in"])


@cases(
    "make word",
    (lambda: M.Network("net", PARAMS), "apply must be a function"),
    (lambda: M.Network(by_hand, {}), "floating-point arrays"),
    (lambda: M.Network(by_hand, PARAMS | {"key": jax.random.key(1)}), "floating-point arrays"),
    (lambda: M.Network(by_hand, PARAMS).check(mo.Rows(x=X, y=Y + 1)), "4 classes"),
    (lambda: M.Network(by_hand, PARAMS).check(mo.Rows(x=X[:, :2], y=Y)), "apply fails"),
    (lambda: M.Network(by_hand, PARAMS, likelihood="gaussian").check(ROWS), "one mean per row"),
    (lambda: M.Network(lambda p, x: x[0], PARAMS).check(ROWS), "vector of logits"),
)
def test_refusals_of_wrapped_networks(make, word):
    refused(mo.ModicumError, word, make)
