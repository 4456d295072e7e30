import gc
import weakref
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import pytest

from bipars.compiling import compiled
from bipars.program import build, complete, preset
from bipars.settings.config import Config, PPOConfig, UpperConfig


@dataclass(frozen=True, eq=False)
class Scaled:
    factor: float
    traced: list

    @compiled
    def times(self, x):
        """Times the factor."""
        self.traced.append(x.shape)
        return self.factor * self.plus_one(x)

    @compiled
    def plus_one(self, x):
        return x + 1


def test_a_method_is_compiled_once_for_each_object_and_shape():
    two, three = Scaled(2.0, []), Scaled(3.0, [])
    assert [float(two.times(jnp.ones(()))) for _ in range(3)] == [4.0, 4.0, 4.0]
    assert float(three.times(jnp.ones(()))) == 6.0
    assert two.times(jnp.ones(2)).shape == (2,)
    assert two.traced == [(), (2,)]
    assert three.traced == [()]
    assert two.times.__doc__ == "Times the factor."


def test_what_was_compiled_goes_with_its_object():
    scaled = Scaled(2.0, [])
    scaled.times(jnp.ones(()))
    gone = weakref.ref(scaled)
    del scaled
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("method", ["ppo", "mgl", "unrolled", "dpba", "ddpg-mgl"])
def test_a_round_leaves_the_types_it_found(method):
    """Or the next one would be compiled anew: as long as the first time, at every start."""
    config = replace(preset("cartpole-continuous", method), terms=("harmful",))
    loop = build(complete(config)).algorithm
    before = jax.eval_shape(loop.init, jnp.uint32(0))
    after, _ = jax.eval_shape(loop.iterate, before, jnp.uint32(0))
    assert types(before) == types(after)


@pytest.mark.parametrize("method", ["mgl", "rcpo"])
def test_the_second_round_needs_no_second_program(method):
    ppo = PPOConfig(update_period=64, num_envs=2, gradient_steps=2, batch_size=16)
    upper = UpperConfig(control_group=True)
    config = Config(env="Pendulum-v1", method=method, terms=("torque",), ppo=ppo, upper=upper, evaluation_episodes=1)
    program = build(complete(config))
    loop, state = program.algorithm, program.init(0)
    for _ in range(2):
        state, _ = program.iterate(state, 0)
    lower = loop.lower.treated if method == "mgl" else loop.lower
    parts = [lower._prepare, lower._policy_steps, lower._value_steps]
    parts += [loop.lower.learn_control, loop.lower.decide] if method == "mgl" else []
    assert [part._cache_size() for part in parts] == [1] * len(parts)


def types(state):
    return [(leaf.shape, leaf.dtype, leaf.weak_type) for leaf in jax.tree.leaves(state)]
