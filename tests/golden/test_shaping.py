from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bipars.envs import CartPole
from bipars.errors import UsageError
from bipars.nets.mlp import to_numpy
from bipars.nets.weights import Range, make_weights
from bipars.program import complete, configure
from bipars.settings.config import Config, WeightConfig
from bipars.settings.resolved import ResolvedWeights
from bipars.terms.builtin import make_term
from bipars.terms.in_jax import Transition
from bipars.terms.term import RewardTerm, check_names, check_terms

RIGHT, LEFT = [0.0, 0.0, 0.1, 0.0], [0.0, 0.0, -0.1, 0.0]


@pytest.mark.parametrize(
    ("name", "expected"),
    # pole right: push right, push left; pole left: push right, push left
    [("beneficial", [0.1, 0, 0, 0.1]), ("harmful", [-0.1, 0, 0, -0.1]), ("half", [0.1, 0, 0, -0.1])],
)
def test_built_in_terms_by_hand(name, expected):
    obs = jnp.array([[RIGHT, RIGHT, LEFT, LEFT]])
    term = make_term(name)
    for action in (jnp.array([[1, 0, 1, 0]]), jnp.array([[[0.3], [-0.2], [0.9], [-1.0]]])):
        value = term.evaluate((), Transition(obs, action, obs), jax.random.key(0))
        np.testing.assert_allclose(value, [expected], atol=1e-7)


@pytest.mark.parametrize("continuous", [False, True])
def test_random_term_is_one_fixed_function_per_seed(continuous):
    env, term = CartPole(continuous=continuous), make_term("random")
    obs = jax.random.uniform(jax.random.key(1), (50, 40, 4), minval=-3, maxval=3)
    action = jnp.sign(obs[..., :1]) if continuous else (obs[..., 0] > 0).astype(jnp.int32)
    step = Transition(obs, action, obs)
    params = term.init(jax.random.key(0), env)
    first, again = (term.evaluate(params, step, jax.random.key(i)) for i in (1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, term.evaluate(term.init(jax.random.key(9), env), step, jax.random.key(1)))
    assert np.abs(first).max() <= 1
    assert params.table.size == 4**4 * 2
    other = term.evaluate(params, step._replace(action=-action if continuous else 1 - action), jax.random.key(1))
    assert np.mean(np.asarray(other) != np.asarray(first)) > 0.99
    assert len(np.unique(first)) > 100


def test_noise_is_new_at_every_step_and_every_call():
    step = Transition(jnp.zeros((100, 30, 4)), jnp.zeros((100, 30), int), jnp.zeros((100, 30, 4)))
    first, second = (make_term("noise").evaluate((), step, jax.random.key(i)) for i in (0, 1))
    assert len(np.unique(first)) == 3000
    assert not np.array_equal(first, second)
    assert abs(float(first.mean())) < 0.05


@pytest.mark.parametrize(
    ("form", "continuous", "hints"),
    [("state", False, 3), ("per-action", False, 6), ("scalar", True, 3), ("state", True, 3), ("state-action", True, 0)],
)
def test_weight_functions_start_near_one_everywhere(form, continuous, hints):
    weights = make_weights(jax.random.key(0), ResolvedWeights(form=form), CartPole(continuous=continuous), 3)
    obs = jax.random.normal(jax.random.key(1), (500, 4))
    action = obs[:, :1] if continuous else (obs[:, 0] > 0).astype(jnp.int32)
    z = weights(obs, action)
    assert z.shape == (500, 3)
    np.testing.assert_allclose(z, 1.0, atol=0.02)
    if hints:
        assert weights.at_state(obs).shape == (500, hints)


@pytest.mark.parametrize(("initial", "unit"), [(1.0, 0.02), (-3.0, 1.0), (0.0, 0.5), (0.1, 1.0)])
def test_weights_move_in_proportion_to_their_size_between_their_unit_and_where_they_started(initial, unit):
    span = Range(initial, None, None, jnp.full(1, unit))
    assert span(jnp.zeros(1))[0] == pytest.approx(initial)
    x = jnp.linspace(-12, 12, 4001)[:, None]
    z, slope = np.asarray(span(x))[:, 0], np.asarray(jax.vmap(jax.grad(lambda x: span(x)[0]))(x))[:, 0]
    top = max(abs(initial), unit)
    np.testing.assert_allclose(slope, np.clip(np.abs(z), unit, top), rtol=1e-3)
    np.testing.assert_allclose(np.diff(z) / np.diff(np.asarray(x)[:, 0]), slope[1:], rtol=0.02, atol=1e-3)
    numpy = replace(span, unit=np.full(1, unit, np.float32))(np.asarray(x))
    np.testing.assert_allclose(numpy[:, 0], z, rtol=1e-4, atol=1e-5)
    # What was measured is not learned.
    assert not np.any(jax.grad(lambda s: s(jnp.ones(1))[0])(span).unit)


def test_only_deterministic_methods_measure_the_unit_of_their_weights():
    assert complete(Config(method="mgl", terms=("harmful",))).weights.in_units is False
    det = configure({"env": "cartpole-continuous", "method": "ddpg-mgl", "terms": ("harmful",)})
    assert complete(det).weights.in_units is True
    assert complete(complete(det)) == complete(det)
    assert complete(replace(det, method="ddpg-ns")).weights.in_units is False


def test_per_action_weights_pick_the_chosen_action():
    weights = make_weights(jax.random.key(0), ResolvedWeights(form="per-action"), CartPole(), 2)
    obs = jax.random.normal(jax.random.key(1), (5, 4))
    every = np.asarray(weights.at_state(obs).reshape(5, 2, 2))
    chosen = [0, 1, 0, 1, 1]
    np.testing.assert_allclose(weights(obs, jnp.array(chosen)), every[np.arange(5), chosen], rtol=1e-6)


@pytest.mark.parametrize(("form", "continuous"), [("per-action", False), ("state", True), ("scalar", True)])
def test_weights_on_the_simplex_are_positive_sum_to_one_and_start_equal(form, continuous):
    config = ResolvedWeights(form=form, simplex=True)
    weights = make_weights(jax.random.key(0), config, CartPole(continuous=continuous), 3)
    obs = jax.random.normal(jax.random.key(1), (50, 4))
    action = obs[:, :1] if continuous else (obs[:, 0] > 0).astype(jnp.int32)
    np.testing.assert_allclose(weights(obs, action), 1 / 3, atol=0.01)
    moved = jax.tree.map(lambda x: x + jax.random.normal(jax.random.key(2), x.shape), weights)
    for function, arguments in ((moved, (obs, action)), (to_numpy(moved), (np.asarray(obs), np.asarray(action)))):
        z = np.asarray(function(*arguments))
        np.testing.assert_allclose(z.sum(-1), 1.0, rtol=1e-5)
        assert 0 < z.min() < 0.2


def test_the_simplex_needs_two_terms_and_a_method_that_learns():
    summing = WeightConfig(simplex=True)
    with pytest.raises(UsageError, match="weights that sum to one need two terms or more"):
        complete(Config(method="mgl", terms=("harmful",), weights=summing))
    with pytest.raises(UsageError, match="for methods that learn weights; 'ns' does not"):
        complete(Config(method="ns", terms=("harmful", "beneficial"), weights=summing))
    with pytest.raises(UsageError, match="always 1: method 'ns'"):
        complete(Config(method="simplex", terms=("harmful",)))
    assert complete(Config(method="simplex", terms=("harmful", "half"))).weights.simplex


def test_bad_terms_are_named():
    with pytest.raises(UsageError, match="unknown term 'harmfull'.*Did you mean 'harmful'"):
        make_term("harmfull")
    with pytest.raises(UsageError, match="takes no argument"):
        make_term("harmful:3")
    with pytest.raises(UsageError, match="cannot read 'x'"):
        make_term("random:x")
    with pytest.raises(UsageError, match="at least 1 cell"):
        make_term("random:0")
    vector = RewardTerm("wide", lambda obs, action, next_obs, info: obs)
    with pytest.raises(UsageError, match=r"term 'wide' returned shape \(4,\)"):
        check_terms([vector], CartPole())
    with pytest.raises(UsageError, match="term 'broken' asked for the key 'nothing here'; info has the keys none"):
        check_terms([RewardTerm("broken", lambda *_: 1 / 0 if False else {}["nothing here"])], CartPole())
    with pytest.raises(UsageError, match="two reward terms are called 'harmful'"):
        check_names([make_term("harmful")] * 2)
