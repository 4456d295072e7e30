"""Bad potentials are named, with what to do about them."""

import jax.numpy as jnp
import numpy as np
import pytest

import bipars
from bipars.errors import NonFiniteError, TermError, UsageError
from bipars.program import Objects, complete
from bipars.settings.config import Config, DPBAConfig
from bipars.shaping.given import Potential
from transitions import TINY


def lean(obs):
    return obs[2] ** 2


def test_bad_potentials_are_named_before_training():
    def check(match, fn, method="pbrs", env="cartpole", error=UsageError, vectorised=False):
        with pytest.raises(error, match=match):
            complete(Config(env=env, method=method, potential="p"), Objects(potential=Potential("p", fn, vectorised)))

    check(r"potential 'p' returned shape \(4,\); return a single number", lambda obs: obs)
    check(r"potential 'p' returned shape \(\); return \(10,\)", lambda obs: 1.0, vectorised=True)
    check("potential 'p' is nan on a first observation", lambda obs: jnp.nan)
    check("potential 'p' failed on a first observation: ZeroDivisionError", lambda obs: 1 / 0)
    check(r"cannot be called with \(obs, action\), as method 'pba' does", lambda obs: 1.0, "pba")
    check(r"cannot be called with \(obs\), as method 'pbrs' does", lambda obs, action: 1.0)
    check(r"potential 'p' returned shape \(4,\) at step 0.*return a single number", lambda obs: obs,
          env="CartPole-v1", error=TermError)  # fmt: skip
    check("potential 'p' is inf at step 0", lambda obs: np.inf, env="CartPole-v1", error=NonFiniteError)
    check("potential 'p' failed at step 0: ZeroDivisionError", lambda obs: 1 / 0, env="CartPole-v1", error=TermError)
    with pytest.raises(UsageError, match="unknown potential 'uprigt'.*Did you mean 'upright'"):
        complete(Config(method="pbrs", potential="uprigt"))
    with pytest.raises(UsageError, match="method 'mgl' uses no potential; got 'upright'. Use one of pbrs, pba"):
        complete(Config(method="mgl", terms=("harmful",), potential="upright"))
    with pytest.raises(UsageError, match="method 'pbrs' needs a potential: --potential"):
        complete(Config(env="Pendulum-v1", method="pbrs"))
    with pytest.raises(UsageError, match="potential 'upright' is written for cart-pole"):
        complete(Config(env="Pendulum-v1", method="pbrs", potential="upright"))
    with pytest.raises(UsageError, match=r"potential 'import:nowhere.fn': cannot read 'nowhere.fn': No module"):
        complete(Config(method="pbrs", potential="import:nowhere.fn"))
    with pytest.raises(UsageError, match=r"give the function a name: Potential\('lean', lean\)"):
        bipars.BiPaRS("cartpole", method="pbrs", potential=lean)
    with pytest.raises(UsageError, match="a potential needs a name"):
        Potential("", lean)


def test_dpba_without_a_term_is_an_error():
    with pytest.raises(UsageError, match="method 'dpba' learns from reward terms; give at least one"):
        complete(Config(method="dpba"))
    with pytest.raises(UsageError, match="dpba.learning_rate is 0.*positive"):
        DPBAConfig(learning_rate=0.0)


def test_a_potential_that_stops_being_a_number_stops_the_run():
    later = Potential("later", lambda obs, step: jnp.where(step > 300, jnp.nan, 0.0))
    agent = bipars.BiPaRS("cartpole", method="dynamic-pbrs", potential=later, ppo=TINY).learn(200)
    with pytest.raises(NonFiniteError, match="the potential's shaping is nan at step"):
        agent.learn(200)
