"""A whole chain in one program, interpreted without an accelerator, against the plain kernel."""

import sys
from dataclasses import replace
from functools import partial
from itertools import product

import jax
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

import modicum as mo
from helpers.patching import pretend_device
from helpers.refusals import refused
from helpers.slow import slowly
from helpers.targets import design, sums_of
from modicum.kernels.energy_conserving import certain_rows
from modicum.kernels.fused.kernel import FusedKernel
from modicum.kernels.moves import HMCMove
from modicum.methods.ecs import composition
from modicum.methods.ecs.composition import fused_kernel
from modicum.methods.method import Task
from modicum.random import chain_keys, words_at_start, words_of_iterations
from modicum.run import iterations as compiled

CHAINS, LENGTH = 2, 6
POSITION = ("position",)
FORMS = {
    "registers": {},
    "tiles": {"registers": 1, "tile": 128},  # three tiles of eight rows, the last half empty
}


def some_rows(n=600, d=4):
    """So few rows that some lie beyond the radius of their series; all fields are used."""
    x, rng = design(n, d)
    fields = {"offset": rng.normal(size=n), "weight": rng.integers(1, 4, n) * 1.0}
    return mo.Rows(x=x, y=(rng.random(n) < 0.3) * 1.0, **fields)


@pytest.fixture
def a_gpu():
    """The GPU that programs are lowered for, which need not be there; JAX from 0.12 on asks."""
    device = AbstractDevice("NVIDIA H100", 132, "gpu")
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        yield


def planned(expert, **settings):
    rows = some_rows()
    with jax.enable_x64(True):
        sums, start = sums_of(mo.models.Logistic(), rows)
        names = tuple(map(str, range(len(start))))
        task = Task(sums.target, start, rows, sums, names, LENGTH, 0, CHAINS, 3)
        return mo.HMCECS(**settings, expert=mo.ECSExpert(**expert)).plan(task)


@pytest.fixture(scope="module")
def split():
    expert = {"fused": False, "integrator": "split"}
    made = planned(expert, subsample=20, blocks=4, refreshes=3, certainty=10)
    move = HMCMove(np.pi / 2, jitter=0.3, split=True)
    return replace(made, kernel=replace(made.kernel, move=move))


@pytest.fixture(scope="module")
def plan(split):
    """The plan of `split`, step sizes included, with leapfrog as integrator."""
    return replace(split, kernel=replace(split.kernel, move=HMCMove(np.pi / 2, jitter=0.3)))


@pytest.fixture(scope="module")
def bare(split):
    """The plan without certainty rows."""
    return replace(split, context=split.context._replace(certain=None))


def fused_of(plan):
    kernel, certain = plan.kernel, certain_rows(plan.context)
    return FusedKernel(
        kernel, kernel.control_variate, kernel.estimator.ddof, certain, interpret=True
    )


@pytest.fixture(scope="module")
def begun(plan):
    """Where all chains begin, whatever moves them and whether or not some rows are certain."""
    with jax.enable_x64(True):
        keys = chain_keys(3, CHAINS)
        fixed = (plan.kernel, plan.context, plan.rows, None)
        return compiled.begin(*fixed, words_at_start(keys)), keys


def run_plain(plan, begun, length=LENGTH):
    state, keys = begun
    span, extent = (np.int64(0), np.int64(length)), compiled.CallLength(LENGTH)
    words = words_of_iterations(keys, np.arange(LENGTH))
    ready = compiled.ahead(plan.kernel, plan.context, plan.rows, None, words)
    return compiled.advance(plan.kernel, extent, plan.context, plan.flags, span, ready, state)


def run_fused(plan, settled, begun, length=LENGTH, rows=None):
    state, keys = begun
    fixed = (settled, plan.context, plan.rows if rows is None else rows)
    words = words_of_iterations(keys, np.arange(LENGTH))
    return compiled.advance_settled(*fixed, np.int64(length), None, state, words)


def furthest(plain, settled):
    """Return the largest difference of each record; booleans and counts must be equal."""
    assert plain.keys() == settled.keys()
    found = {}
    for names, values in plain.items():
        off = np.abs(np.asarray(values, float) - np.asarray(settled[names], float))
        if values.dtype.kind == "f":
            found |= dict(zip(names, off.reshape(-1, off.shape[-1]).max(axis=0), strict=False))
        else:
            assert off.max() == 0
        if names == POSITION:
            found["position"] = off.max()
    return found


@pytest.fixture(scope="module")
def truths(plan, split, begun):
    """What the plain kernel draws, by its integrator."""
    with jax.enable_x64(True):
        return {"leapfrog": run_plain(plan, begun), "split": run_plain(split, begun)}


@pytest.fixture(scope="module")
def truth(truths):
    return truths["leapfrog"]


@pytest.fixture(scope="module")
def table(plan):
    """All rows, as a program that holds its subsample in registers reads them."""
    with jax.enable_x64(True):
        return compiled.table_of(fused_of(plan), plan.context, plan.rows)


SLOW = pytest.mark.slow
QUICK = (("leapfrog", "registers"), ("split", "tiles"))


# An integrator changes the force and the numbers of a step, which both forms of a program compute
# in one place: each form with an integrator is enough.
@pytest.mark.parametrize(
    ("integrator", "form"),
    [
        pytest.param(*case, marks=() if case in QUICK else SLOW)
        for case in product(("leapfrog", "split"), FORMS)
    ],
)
def test_it_draws_what_the_plain_kernel_draws(
    plan, split, begun, truths, table, integrator, form, x64
):
    plan = {"leapfrog": plan, "split": split}[integrator]
    settled = replace(fused_of(plan), **FORMS[form])
    state, record = truths[integrator]
    rows = table if form == "registers" else None
    settled_state, settled_record = run_fused(plan, settled, begun, rows=rows)
    off = furthest(record, settled_record)
    assert off.pop("acceptance_rate_u") == 0  # the same blocks
    assert 0 < off.pop("position") < 1e-5
    assert max(off.values()) < 1e-4
    assert np.abs(np.diff(np.asarray(record[POSITION]), axis=1)).max() > 0.1  # chains move
    for a, b in zip(*map(jax.tree.leaves, (state, settled_state)), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-3)


@SLOW
def test_no_row_need_be_certain(bare, begun, x64):
    _, record = run_plain(bare, begun)
    off = furthest(record, run_fused(bare, replace(fused_of(bare), **FORMS["tiles"]), begun)[1])
    assert 0 < off.pop("position") < 1e-5
    assert max(off.values()) < 1e-4


@pytest.mark.parametrize("form", FORMS)
def test_rows_that_are_slightly_off_are_noticed(plan, begun, truth, table, form, x64):
    """Negative control: outcomes that differ by a hundredth change the draws."""
    progress, keys = begun

    def off(rows):
        return rows._replace(y=rows.y + 0.01)

    wrong = replace(plan, context=plan.context._replace(certain=off(plan.context.certain)))
    state = progress.state._replace(subsample=off(progress.state.subsample))
    settled, rows = replace(fused_of(plan), **FORMS[form]), table if form == "registers" else None
    _, record = run_fused(wrong, settled, (progress._replace(state=state), keys), rows=rows)
    assert furthest(truth[1], record)["position"] > 1e-5


@SLOW
@pytest.mark.filterwarnings("ignore::modicum.ModicumWarning")
def test_the_front_door_takes_it(monkeypatch):
    # the GPU program, interpreted: after warm-up its draws equal the plain path's
    pretend_device(monkeypatch, "gpu")
    monkeypatch.setattr(
        "modicum.kernels.fused.kernel.FusedKernel", partial(FusedKernel, interpret=True)
    )
    # From JAX 0.11 on, a program can only be lowered with a GPU present.
    monkeypatch.setattr("modicum.methods.ecs.composition._can_lower", lambda form: True)
    length = {"draws": 24, "tune": 30, "chains": 4, "random_seed": 2, "progressbar": False}
    posts = {}
    for setting in (False, "auto"):
        sizes = {"subsample": 20, "blocks": 4, "refreshes": 2, "certainty": 10}
        method = mo.HMCECS(**sizes, expert=mo.ECSExpert(fused=setting))
        posts[setting] = mo.sample(mo.models.Logistic(), some_rows(), method=method, **length)
    assert posts["auto"].tuning["path"]["value"] == "fused"
    why = "fused iterations were switched off"
    assert posts[False].tuning["path"] == {"value": "plain", "why": why}
    for name, plain in posts[False].draws.items():
        assert posts["auto"][name].dtype == np.float64
        assert np.abs(posts["auto"][name] - plain).max() < 1e-4 * plain.std()
        assert np.abs(posts["auto"][name] - plain).max() > 0
    for name, plain in posts[False].stats.items():
        assert posts["auto"].stats[name].dtype == plain.dtype
        assert np.allclose(posts["auto"].stats[name], plain, rtol=1e-4, atol=1e-4)
    assert posts["auto"].ledger.to_dict() == posts[False].ledger.to_dict()
    thinned = mo.sample(
        mo.models.Logistic(), some_rows(), method=method, thin=2, **length | {"draws": 2}
    )
    assert thinned.tuning["path"] == {"value": "plain", "why": "draws are thinned"}


@pytest.mark.parametrize("form", FORMS)
def test_iterations_beyond_the_count_are_left_out(plan, begun, truth, table, form, x64):
    settled = replace(fused_of(plan), **FORMS[form])
    rows = table if form == "registers" else None
    state, _ = run_fused(plan, settled, begun, length=2, rows=rows)
    assert np.allclose(state.state.z, truth[1][POSITION][:, 1], atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["plan", *slowly("bare")])
def test_it_is_lowered_for_a_gpu(kind, form, begun, request, x64, a_gpu):
    plan = request.getfixturevalue(kind)
    settled = replace(fused_of(plan), interpret=False, **FORMS[form])
    state, keys = begun
    words = words_of_iterations(keys, np.arange(LENGTH))

    def advance(*arguments):
        return compiled.advance_settled(settled, *arguments)

    traced = jax.jit(advance).trace(plan.context, plan.rows, np.int64(LENGTH), None, state, words)
    assert "triton" in traced.lower(lowering_platforms=("cuda",)).as_text()


# Patches of JAX, after which everything is compiled again ----------------------------------


def test_a_gpu_takes_a_split_integrator(plan, monkeypatch, a_gpu):
    assert mo.HMCECS().with_integrator(plan.kernel, plan.context)[0].move == HMCMove(1.2)
    pretend_device(monkeypatch, "gpu")
    kernel, tuning = mo.HMCECS().with_integrator(plan.kernel, plan.context)
    assert kernel.move == HMCMove(np.pi / 2, split=True)
    assert tuning["integrator"]["value"] == "split"
    for setting in ({"expert": mo.ECSExpert(integrator="leapfrog")}, {"inner": "nuts"}):
        assert mo.HMCECS(**setting).with_integrator(plan.kernel, plan.context)[0] is plan.kernel
    other = plan.context._replace(proxy=plan.context.proxy.mapped(warp=()))
    kernel, tuning = mo.HMCECS().with_integrator(plan.kernel, other)
    assert not kernel.move.split
    assert "not normal" in tuning["integrator"]["why"]


def test_where_there_is_no_gpu_nothing_changes(plan):
    assert fused_kernel("auto", plan.kernel, plan.context) == (None, "there is no GPU")
    with pytest.raises(mo.SettingError, match="cannot be fused, since there is no GPU; leave"):
        planned({"fused": True}, subsample=20)
    refused(mo.SettingError, "fused must be True, False or 'auto'", mo.ECSExpert, fused="yes")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda k, c: (replace(k, move=lambda *a: a), c), "not moved by HMC"),
        (lambda k, c: (replace(k, estimator=None), c), "not the perturbed estimator"),
        (lambda k, c: (replace(k, control_variate=None), c), "a single linear predictor"),
        (lambda k, c: (k, c._replace(proxy=c.proxy._replace(B=np.eye(5)))), "second order"),
        (lambda k, c: (k, c._replace(proxy=c.proxy.mapped(warp=()))), "prior is not normal"),
        (
            lambda k, c: (k, c._replace(proxy=c.proxy.mapped(point=np.zeros(600)))),
            "more than 512",
        ),
        (lambda k, c: (_of_family(k, mo.models.Probit()), c), "no GPU program of the family"),
    ],
)
def test_what_is_not_covered_is_said(plan, monkeypatch, a_gpu, change, reason):
    pretend_device(monkeypatch, "gpu")
    settled, _ = fused_kernel("auto", plan.kernel, plan.context)
    assert isinstance(settled, FusedKernel)
    settled, why = fused_kernel("auto", *change(plan.kernel, plan.context))
    assert settled is None
    assert reason in why


def test_a_jax_without_pallas_triton_runs_the_plain_kernel(plan, monkeypatch, a_gpu):
    """JAX says that it will go: chains then run iteration by iteration."""
    pretend_device(monkeypatch, "gpu")
    assert fused_kernel("auto", plan.kernel, plan.context)[0] is not None  # negative control
    monkeypatch.delattr("jax.experimental.pallas.triton")
    monkeypatch.setitem(sys.modules, "jax.experimental.pallas.triton", None)
    composition._can_lower.cache_clear()
    settled, why = fused_kernel("auto", plan.kernel, plan.context)
    composition._can_lower.cache_clear()
    assert settled is None
    assert "JAX makes no GPU program" in why


def _of_family(kernel, model):
    form = kernel.control_variate
    return replace(kernel, control_variate=replace(form, target=replace(form.target, model=model)))
