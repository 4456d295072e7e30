"""Bad input of `bipars.sb3`: one line, before training, with what would do."""

import subprocess
import sys

import gymnasium
import numpy as np
import pytest

import bipars
from bipars.errors import BiparsError, CheckpointError, NonFiniteError, TermError, UsageError
from sb3_models import COST, QUICK, Reach, shaped

sb3 = pytest.importorskip("stable_baselines3")

from stable_baselines3.common.policies import ActorCriticPolicy  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv  # noqa: E402
from stable_baselines3.sac.policies import SACPolicy  # noqa: E402

import bipars.sb3  # noqa: E402


class Recurrent(ActorCriticPolicy):
    def evaluate_actions(self, obs, actions, lstm_states, episode_starts):
        raise AssertionError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"terms": ()}, "terms is empty; give at least one"),
        ({"terms": [COST, COST]}, "two reward terms are called 'cost'"),
        ({"terms": [len]}, "expected RewardTerm objects and names of built-in terms"),
        ({"terms": bipars.RewardTerm.from_info("speed")}, "term 'speed': info has no key 'speed'; its keys are"),
        ({"terms": "torque", "env": Reach(actions="discrete")}, "the actions of this environment are discrete"),
        ({"policy": SACPolicy}, "policy SACPolicy has no evaluate_actions.*Use an ActorCriticPolicy"),
        ({"policy": Recurrent}, "policy Recurrent takes .*'lstm_states'.*Use an ActorCriticPolicy"),
        ({"env": 3}, "env is 3; expected a Gymnasium id, a gymnasium.Env, or a VecEnv"),
        ({"env": gymnasium.vector.SyncVectorEnv([Reach])}, "a vector environment of Gymnasium; .*make_vec_env"),
        ({"method": "imgl"}, "method is 'imgl'; bipars.sb3.ShapedPPO knows mgl, single, ns, ppo. bipars.BiPaRS has it"),
        ({"method": "sac"}, "method is 'sac'; bipars.sb3.ShapedPPO knows mgl, single, ns, ppo$"),
        ({"horizon": "long"}, "unknown horizon 'long'"),
        ({"true_reward": "other"}, "true_reward is 'other'; expected one of env"),
        ({"weights": {"size": 3}}, "unknown key in weights 'size'"),
        ({"weights": {"simplex": True}}, "weights.simplex is not supported"),
        ({"weights": {"form": "per-action"}}, "weights.form 'per-action' needs one discrete action"),
        ({"weights": {"form": "statewise"}}, "unknown weights.form 'statewise'"),
        ({"weights": {"high": 0.5}}, "weights.initial is 1.0; expected a number from -inf to 0.5"),
    ],
)
def test_one_line_before_training(settings, message):
    with pytest.raises(BiparsError, match=message) as caught:
        shaped(settings.pop("env", None) or Reach(), **settings)
    assert "\n" not in str(caught.value)


def test_a_key_that_only_one_environment_reports_is_named():
    class Silent(Reach):
        def step(self, action):
            *step, _ = super().step(action)
            return *step, {}

    with pytest.raises(TermError, match="term 'cost': info has no key 'cost'; its keys are"):
        shaped(DummyVecEnv([Reach, Silent]))


def test_a_reward_that_is_no_number_is_named():
    odd = bipars.RewardTerm("odd", lambda obs, action, next_obs, info: np.nan if obs[0] == 3 else 0.0)
    with pytest.raises(NonFiniteError, match="term 'odd' is nan at step 3"):
        shaped(Reach(), terms=odd).learn(32)


def test_another_algorithm_is_refused(tmp_path):
    with pytest.raises(AttributeError, match="has no ShapedSAC: weights are learned through PPO's objective alone"):
        _ = bipars.sb3.ShapedSAC
    with pytest.raises(AttributeError, match="has no attribute 'other'"):
        _ = bipars.sb3.other
    sb3.PPO("MlpPolicy", Reach(), **QUICK).save(tmp_path / "plain")
    with pytest.raises(UsageError, match="was not saved by bipars.sb3.ShapedPPO: it holds no weights of terms"):
        bipars.sb3.ShapedPPO.load(tmp_path / "plain")
    (tmp_path / "text.zip").write_text("no archive")
    with pytest.raises(CheckpointError, match="is no archive of Stable-Baselines3"):
        bipars.sb3.ShapedPPO.load(tmp_path / "text.zip")


def test_a_loaded_model_asks_for_its_own_terms(tmp_path):
    shaped(Reach()).save(tmp_path / "model")
    other = bipars.RewardTerm("other", lambda obs, action, next_obs, info: 0.0)
    with pytest.raises(UsageError, match="the terms given are \\['other'\\]; expected \\['cost'\\]"):
        bipars.sb3.ShapedPPO.load(tmp_path / "model", env=Reach(), terms=other)
    with pytest.raises(UsageError, match="loaded without terms; to learn, pass terms=... to load"):
        bipars.sb3.ShapedPPO.load(tmp_path / "model", env=Reach()).learn(32)
    with pytest.raises(UsageError, match="has not learned yet"):
        bipars.sb3.ShapedPPO.load(tmp_path / "model").report()


def test_a_missing_package_is_one_line():
    code = "import sys; sys.modules['stable_baselines3'] = None\nimport bipars.sb3"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stderr.splitlines()[-1].endswith("needs packages that are not installed: pip install 'bipars[sb3]'")
