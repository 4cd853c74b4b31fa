"""Networks as models: forward passes, gradients, types, starts, names."""

import jax
import numpy as np
import pytest

import modicum as mo
from helpers.refusals import refused
from helpers.slow import slowly
from helpers.targets import all_of
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
log_likelihood = jax.jit(
    lambda net, theta, batch: net.log_likelihood(theta, batch), static_argnums=0
)
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


@pytest.mark.parametrize(
    ("make", "word"),
    [
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
    ],
)
def test_refusals(make, word):
    refused(mo.ModicumError, word, make)
