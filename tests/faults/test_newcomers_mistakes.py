"""The ten mistakes that a newcomer is most likely to make. Each ends in one line, which says what to do."""

import sys
import warnings

import gymnasium
import numpy as np
import pytest

import bipars
from bipars.cli import main
from bipars.errors import BiparsError
from fake_runs import GOOD, fake_cell

QUICK = {"update_period": 256, "num_envs": 8, "gradient_steps": 2, "batch_size": 64}


class Walk(gymnasium.Env):
    """A number is pushed about; the reward is how far to the right it is."""

    observation_space = gymnasium.spaces.Box(-9.0, 9.0, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    fails = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        self.time = 0
        return self.place, {}

    def step(self, action):
        self.place, self.time = np.clip(self.place + 0.1 * action, -9, 9).astype(np.float32), self.time + 1
        info = {"reward_place": float(self.place[0]), "reward_effort": -float(action[0] ** 2)}
        reward = float("nan") if self.fails and self.time == 5 else sum(info.values())
        return self.place, reward, False, self.time == 20, info


class Unbounded(Walk):
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)


class Failing(Walk):
    fails = True


def term(fn, name="mine"):
    return bipars.RewardTerm(name, fn)


def place(obs, action, next_obs, info):
    return float(next_obs[0])


def effort(obs, action, next_obs, info):
    return -float(action[0] ** 2)


def root(obs, action, next_obs, info):
    with np.errstate(invalid="ignore"):
        return float(np.sqrt(next_obs[0]))


def trained(env=Walk, terms=(), steps=256, **settings):
    return bipars.BiPaRS(env, terms=terms, ppo=QUICK, evaluation_episodes=1, **settings).learn(steps)


WRONG = {
    "wrong signature": (
        lambda: term(lambda obs, action: 0.0),
        "term 'mine' is a function of (obs, action); write it as one of (obs, action, next_obs, info)",
    ),
    "wrong signature of the true reward": (
        lambda: trained(true_reward=lambda obs: 0.0),
        "the true reward is a function of (obs); write it as one of (obs, action, next_obs, info)",
    ),
    "a function without a name": (
        lambda: trained(terms=[place]),
        "give the function a name: RewardTerm('place', place)",
    ),
    "unbounded actions": (
        lambda: trained(Unbounded),
        "action space is Box(-inf, inf, (1,), float32), without finite bounds; supported are Box with finite bounds, "
        "Discrete, MultiDiscrete and MultiBinary. Give it bounds, such as -1 and 1: ",
    ),
    "the same term twice": (
        lambda: trained(terms=[term(place), term(effort)]),
        "two reward terms are called 'mine'; leave one of them out, or give each its own name",
    ),
    "NaN from a term": (
        lambda: trained(terms=[term(root)]),
        "term 'mine' is nan at step ",
    ),
    "NaN from the environment": (
        lambda: trained(Failing, [term(place)]),
        "the true reward is nan at step ",
    ),
    "wrong id": (
        lambda: trained("Pendulum-v7"),
        "unknown environment 'Pendulum-v7'. Did you mean 'Pendulum-v1' or ",
    ),
    "a report before training": (
        lambda: bipars.BiPaRS(Walk, [term(place)], ppo=QUICK).report(),
        "this agent has not learned yet, so there is nothing to report: call agent.learn(...) first",
    ),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_what_cannot_be_done_is_one_line_with_the_remedy(mistake):
    do, message = WRONG[mistake]
    with pytest.raises(BiparsError) as caught:
        do()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        (
            [term(place, "a"), term(lambda *step: 3 * place(*step), "b")],
            "term 'b' is the same as term 'a', up to its scale: keep one of them",
        ),
        (
            [term(place, "place"), term(effort, "effort")],
            "the true reward is the sum of terms 'place' and 'effort', up to scale, in all 256 steps looked at: they "
            "count twice. Leave them out, or set true_reward to what you really want",
        ),
        (
            [bipars.RewardTerm.from_info("reward_effort")],
            "term 'reward_effort' counts twice: the environment's reward is already the sum of reward_place, "
            "reward_effort. true_reward 'env-minus-terms' takes it out of the reward",
        ),
    ],
)
def test_what_makes_no_sense_is_warned_of_once(terms, message):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trained(terms=terms)
    assert [str(warning.message) for warning in caught] == [message]


def test_terms_that_belong_to_no_reward_raise_no_alarm():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(terms=[term(place)])
        trained(terms=[bipars.RewardTerm.from_info("reward_effort")], true_reward="env-minus-terms")


def test_too_few_steps_are_said_to_be_in_the_verdict():
    said = trained(terms=[term(place)]).report().together
    assert "256 steps are too few to tell the gradient of the true reward from noise. Train for 12,800 or more" in said


def test_one_seed_is_said_to_be_in_the_verdict(tmp_path, capsys):
    fake_cell(tmp_path, "mgl", GOOD[:1], weight=1.0)
    assert main(["report", str(tmp_path), "--text"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "(One seed tells which way a term points, not what it gains: train several, such as 0 to 4.)" in text


@pytest.mark.parametrize(
    ("package", "use", "extra"),
    [
        ("wandb", lambda: bipars.WandB(project="mine"), "wandb"),
        ("mlflow", lambda: bipars.MLflow("mine"), "mlflow"),
        ("polars", lambda: bipars.load_results("nowhere"), "tables"),
    ],
)
def test_a_forgotten_extra_is_named(package, use, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BiparsError) as caught:
        use()
    assert str(caught.value).endswith(f"needs a package that is not installed: pip install 'bipars[{extra}]'")


def test_a_saved_agent_is_reported_but_not_compared(tmp_path, capsys):
    trained(terms=[term(place)]).save(tmp_path / "agent")
    assert main(["report", str(tmp_path / "agent"), "--text"]) == 0
    assert "mine" in capsys.readouterr().out
    assert main(["report", str(tmp_path / "agent"), "--compare"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("In Python, bipars.compare(...) trains the same comparisons")


def test_on_the_command_line_mistakes_are_one_line_too(tmp_path, capsys):
    out = ["--out", str(tmp_path / "runs")]
    for words, message in [
        (["--env", "Pendulum-v7"], "bipars: unknown environment 'Pendulum-v7'. Did you mean 'Pendulum-v1'"),
        (["--env", "cartpole", "--term", "harmfull"], "bipars: unknown term 'harmfull'. Did you mean 'harmful'?"),
        (["--env", "cartpole", "--term", "harmful", "--term", "harmful"], "bipars: two reward terms are called"),
    ]:
        assert main(["train", *words, *out]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(message)
