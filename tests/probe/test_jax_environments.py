"""Environments of Gymnax's and Brax's protocols: their ends, terms, spaces, and training, compiled whole."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bipars
from bipars.envs import from_brax, from_gymnax
from bipars.errors import UsageError
from bipars.rollout.jax_sampler import JaxSampler
from bipars.terms.term import RewardTerm
from bipars.terms.true_reward import TrueReward
from envs_in_jax import Line, OldLine, Params, Restarting, Slider, Truncating, Vectorised
from envs_of_others import QUICK, quick


class Always:
    """A policy that always takes one action."""

    def __init__(self, action):
        self.action = jnp.asarray(action)

    def draw_noise(self, key, shape):
        return jnp.zeros(shape)

    def mode(self, obs):
        return jnp.broadcast_to(self.action, (*obs.shape[:-1], *self.action.shape))

    def sample(self, obs, noise):
        return self.mode(obs)

    def log_prob(self, obs, action):
        return jnp.zeros(obs.shape[:-1])


def run(env, action, terms=(), steps=20, **settings):
    sampler = JaxSampler(env, terms, num_envs=2, steps=steps, episodes=3, **settings)
    policy = Always(action)

    @jax.jit
    def both(key):
        return sampler.run(policy, sampler.reset(key), key)[1], sampler.evaluate(policy, key)

    return both(jax.random.key(0))


@pytest.mark.parametrize("line", [OldLine, Line], ids=["gymnax 0", "gymnax 1"])
def test_gymnax_tells_falling_from_the_time_limit(line):
    """To the right it falls in step 3 or 4, beyond 3; to the left nothing ends it but the limit of 9."""
    env = from_gymnax(line(), Params())
    batch, evaluation = run(env, 1)
    np.testing.assert_array_equal(batch.done, batch.terminated)
    ended = np.asarray(batch.done)
    position = np.asarray(batch.next_obs)[..., 0]
    assert (position[ended] > 3).all()
    assert (position[~ended] <= 3).all()
    np.testing.assert_array_equal(evaluation.true_return, evaluation.length)
    batch, evaluation = run(env, 0)
    assert not np.asarray(batch.terminated).any()
    np.testing.assert_array_equal(np.nonzero(np.asarray(batch.done)[:, 0])[0], [8, 17])
    assert evaluation.length.tolist() == [9, 9, 9]
    # The state in which an episode ends is kept; the next one begins elsewhere.
    np.testing.assert_allclose(batch.next_obs[8, 0, 0] - batch.obs[8, 0, 0], -1, atol=1e-5)
    assert abs(float(batch.obs[9, 0, 0])) <= 0.5


def test_gymnax_observations_reach_terms_in_their_own_form():
    env = from_gymnax(Line())
    assert (env.name, env.max_steps, env.observation_size) == ("Line", 9, 3)
    terms = (
        RewardTerm("parity", lambda obs, action, next_obs, info: obs["parity"] + 10 * next_obs["parity"]),
        RewardTerm("many", lambda obs, action, next_obs, info: obs["position"][:, 0, 0] + action, vectorised=True),
        RewardTerm.from_info("height"),
    )
    batch, _ = run(env, 0, terms, steps=4)
    np.testing.assert_array_equal(batch.terms[:, 0, 0], [10, 1, 10, 1])
    np.testing.assert_allclose(batch.terms[..., 1], batch.obs[..., 0], rtol=1e-6)
    np.testing.assert_allclose(batch.terms[..., 2], batch.next_obs[..., 0], rtol=1e-6)


@jax.tree_util.register_pytree_node_class
class Unbatched:
    """As MuJoCo Warp's arrays, which keep their shape whatever happens."""

    def tree_flatten(self):
        return (jnp.zeros(0),), None

    @classmethod
    def tree_unflatten(cls, aux, leaves):
        return cls()


class InWarp(Slider):
    def reset(self, rng):
        state = super().reset(rng)
        return dataclasses.replace(state, info=state.info | {"data": Unbatched()})


def test_a_state_that_cannot_be_batched_is_named_before_training():
    with pytest.raises(UsageError, match=r"'InWarp' has a state that jax.vmap does not batch.*'impl': 'jax'"):
        from_brax(InWarp())


def test_true_rewards_of_every_kind_are_compiled_too():
    env, terms = from_brax(Slider()), (RewardTerm.from_info("reward/effort"),)
    of = {
        "info": TrueReward("info:distance"),
        "function": TrueReward("function", lambda obs, action, next_obs, info: 2.0 * next_obs[0]),
        "minus": TrueReward("env-minus-terms"),
    }
    found = {name: run(env, [0.4], terms, 3, true_reward=true) for name, true in of.items()}
    x = np.asarray(found["info"][0].next_obs)[..., 0]
    np.testing.assert_allclose(found["info"][0].reward, np.abs(x), rtol=1e-6)
    np.testing.assert_allclose(found["function"][0].reward, 2 * x, rtol=1e-6)
    np.testing.assert_allclose(found["minus"][0].reward, 1 - np.abs(x), rtol=1e-5, atol=1e-6)
    # Evaluated greedily, an episode is five or six steps of 0.2 to the right, from about 0.
    batch, evaluation = run(env, [0.4], terms, 12, true_reward=of["function"])
    ends = np.nonzero(np.asarray(batch.done)[:, 0])[0]
    assert set(evaluation.length.tolist()) <= {5, 6}
    assert ends[0] + 1 in (5, 6)
    np.testing.assert_allclose(evaluation.true_return, 2 * (0.2 + 0.4 + 0.6 + 0.8 + 1.0), atol=2.6)


def test_brax_tells_truncation_from_done():
    batch, evaluation = run(from_brax(Truncating()), [0.0])
    assert not np.asarray(batch.terminated).any()
    np.testing.assert_array_equal(np.nonzero(np.asarray(batch.done)[:, 0])[0], [3, 7, 11, 15, 19])
    assert evaluation.length.tolist() == [4, 4, 4]
    batch, _ = run(from_brax(Truncating()), [1.0])  # beyond 1 in two or three steps
    np.testing.assert_array_equal(batch.done, batch.terminated)
    assert np.asarray(batch.done).any()


def test_episodes_of_brax_end_after_the_steps_that_somebody_says():
    assert from_brax(Slider()).max_steps == 1000
    assert from_brax(Slider(episode_length=70)).max_steps == 70
    assert from_brax(Slider(episode_length=70), max_steps=5).max_steps == 5
    assert run(from_brax(Slider(), max_steps=5), [0.0])[1].length.tolist() == [5, 5, 5]


def test_of_several_observations_the_policy_sees_one():
    env = from_brax(Slider(two_observations=True))
    assert env.observation_size == 1
    assert from_brax(Slider(two_observations=True), observation="privileged_state").observation_size == 3
    with pytest.raises(UsageError, match=r"has the observations \['privileged_state', 'state'\]; got 'pixels'"):
        from_brax(Slider(two_observations=True), observation="pixels")


def test_terms_are_found_by_name_and_an_agent_comes_back(tmp_path):
    env = from_brax(Slider(), max_steps=30)
    agent = quick(env, "auto", true_reward="info:distance")
    assert [term.name for term in agent.terms] == ["effort", "middle"]
    agent.learn(192)
    row = agent.metrics[-1]
    assert row["term/effort"] < 0
    assert np.isfinite([row["weight/effort"], row["weight/middle"]]).all()
    action, _ = agent.predict(np.zeros(1), deterministic=True)
    assert agent.weights(np.zeros(1), action).shape == (2,)
    agent.save(tmp_path / "agent")
    with pytest.raises(UsageError, match="environment of your own, 'Slider'; pass it"):
        bipars.BiPaRS.load(tmp_path / "agent")
    loaded = bipars.BiPaRS.load(tmp_path / "agent", env=env, terms="auto")
    assert loaded.learn(64).metrics[-1] == agent.learn(64).metrics[-1]
    assert {verdict.term for verdict in agent.report().verdicts} == {"effort", "middle"}


def test_an_environment_of_the_own_protocol_is_an_object_too():
    agent = bipars.BiPaRS(bipars.envs.CartPole(max_steps=20), "harmful", ppo=QUICK, evaluation_episodes=2)
    assert agent.learn(64).metrics[-1]["evaluation_length"] <= 20


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: from_gymnax(Slider()), "has no reset_env.*no environment of Gymnax's protocol"),
        (lambda: from_gymnax((Line(), Params())), "tuple|Line.*has no reset_env"),
        (lambda: from_gymnax(type("Wrapper", (Line,), {"_env": None})()), "Wrapper is a wrapper; give the environment"),
        (lambda: from_brax(Line()), "has no reset and no step and no action_size"),
        (lambda: from_brax(Restarting()), "wrapped to start episodes anew by itself"),
        (lambda: from_brax(Vectorised()), "failed on reset.*vectorised here"),
        (lambda: from_brax(Slider(), max_steps=0), "max_steps is 0; expected at least 1"),
        (lambda: quick(Line()), r"pass bipars.envs.from_gymnax\(env, params\)"),
        (lambda: quick(Slider()), r"pass bipars.envs.from_brax\(env\)"),
        (lambda: quick(from_brax(Slider()), vector="sync"), "vector is 'sync', but environment 'Slider' is an object"),
        (lambda: quick(from_brax(Slider()), env_options={"a": 1}), "env_options is {'a': 1}"),
        (lambda: quick(from_gymnax(Line()), "auto"), "environment 'Line' reports none: no metric or key of info"),
        (lambda: quick("Pendulum-v1", "auto"), "asks an environment of bipars.envs.from_brax"),
        (
            lambda: quick(from_gymnax(Line()), [RewardTerm.from_info("speed")]),
            r"term 'speed': info has no key 'speed'; its keys are \['discount', 'height', 'pair'\]",
        ),
        (lambda: quick(from_gymnax(Line()), [RewardTerm.from_info("pair")]), r"info\['pair'\].*a single number"),
        (
            lambda: quick(from_gymnax(Line()), [RewardTerm("fast", lambda o, a, n, info: info["speed"])]),
            "term 'fast' asked for the key 'speed'; info has the keys",
        ),
        (
            lambda: quick(from_gymnax(Line()), true_reward=lambda o, a, n, info: float(a)),
            r"the true reward failed on one transition.*Leave out float\(\)",
        ),
        (lambda: quick(from_gymnax(Line()), true_reward="info:speed"), "true reward is 'info:speed', but info has no"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(make, message):
    with pytest.raises(UsageError, match=message) as error:
        make()
    assert "\n" not in str(error.value)
