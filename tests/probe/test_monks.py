"""Monks and gruel: the rules by hand, PettingZoo's own test, the exact solution, and learners that find it."""

import re
import sys
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

from bipars.cli import main
from bipars.errors import UsageError
from bipars.monks.config import MonksConfig
from bipars.monks.environment import SYSTEM, MonksAndGruel
from bipars.monks.learn import Monastery
from bipars.monks.report import LAST
from bipars.monks.rules import Game
from bipars.monks.solve import solve
from bipars.nets.mlp import to_numpy

PAGE = Path(__file__).parents[2] / "docs" / "monks.md"

with warnings.catch_warnings():  # with pygame installed, it imports environments in a deprecated way
    warnings.simplefilter("ignore", DeprecationWarning)
    from pettingzoo.test import api_test


@pytest.mark.parametrize("num_monks", [1, 2, 5])
def test_pettingzoos_own_test(num_monks, capsys):
    api_test(MonksAndGruel(num_monks, 3.0), num_cycles=50)
    assert "Passed" in capsys.readouterr().out


def give(env, assigner, share):
    env.step(assigner)
    assert env.agent_selection == f"monk_{assigner + 1}"
    env.step(np.array([share], np.float32))
    return dict(env.rewards)


def test_a_game_by_hand():
    env = MonksAndGruel(3, 6.0, render_mode="ansi")
    env.reset(seed=0)
    np.testing.assert_array_equal(env.observe(SYSTEM), [1, 0, 0, 1])
    assert give(env, 2, 0.5) == {SYSTEM: -1.0, "monk_1": 3.0, "monk_2": 0.0, "monk_3": 0.0}  # |2 - 3|
    np.testing.assert_array_equal(env.observe("monk_1"), [0, 1, 0, 0.5])
    assert give(env, 0, 0.0) == {SYSTEM: -2.0, "monk_1": 0.0, "monk_2": 0.0, "monk_3": 0.0}
    assert give(env, 2, 1.0) == {SYSTEM: -1.0, "monk_1": 0.0, "monk_2": 0.0, "monk_3": 3.0}
    assert all(env.terminations.values())
    assert env.bowls == [3.0, 0.0, 3.0]
    assert env.render().splitlines()[0] == "monk 3 gave 3 to monk 1"


def test_actions_outside_their_space_are_named():
    env = MonksAndGruel(2)
    env.reset()
    with pytest.raises(UsageError, match="the action of system_0 is 2; expected one of Discrete"):
        env.step(2)
    env.step(1)
    with pytest.raises(UsageError, match="the action of monk_2 is .*1.5"):
        env.step(np.array([1.5], np.float32))


@pytest.mark.parametrize(
    "ask",
    [
        lambda env: env.step(0),
        lambda env: env.observe(SYSTEM),
        lambda env: env.last(),
        lambda env: next(iter(env.agent_iter())),
        lambda env: env.render(),
        lambda env: env.left,
        lambda env: env.num_agents,
    ],
)
def test_before_reset_everything_asks_for_it(ask):
    env = MonksAndGruel(2, render_mode="ansi")
    with pytest.raises(UsageError, match=r"no game has begun: call reset\(\)"):
        ask(env)
    assert not hasattr(env, "agents")
    env.reset()
    ask(env)


def test_a_game_that_is_over_asks_for_reset():
    env = MonksAndGruel(1)
    env.reset()
    give(env, 0, 1.0)
    for _ in range(2):
        env.step(None)
    with pytest.raises(UsageError, match=r"the game is over; call reset\(\)"):
        env.step(None)


def test_unknown_agents_modes_and_attributes_are_named():
    env = MonksAndGruel(2)
    env.reset()
    for ask in (env.observe, env.observation_space, env.action_space):
        with pytest.raises(UsageError, match="unknown agent 'monk_3'.*Known: monk_1, monk_2, system_0"):
            ask("monk_3")
    with pytest.raises(UsageError, match="render_mode is 'human'; expected 'ansi'"):
        MonksAndGruel(2, render_mode="human")
    with pytest.raises(AttributeError, match="no attribute 'gruel'"):
        env.gruel  # noqa: B018
    with pytest.warns(UserWarning, match="render_mode='ansi'"):
        assert env.render() is None


def test_two_monks_solved_by_hand():
    """The system names monk 2. If that leaves the first bowl empty, monk 1, who does not care any more, shares out the
    rest at random. If it gives enough, the system rather lets it help itself. Enough is where |1/2 - g| = E|1/2 - x g|,
    x uniform: g^2 = 1/2.
    """
    plan = solve(Game(2), 11)
    assert plan.assigners == (1,)
    np.testing.assert_allclose(plan.bowls, [0.3, 0.7])
    assert plan.value == pytest.approx(-0.4)
    for gruel in (1e-300, 1e-10, 1e10, 1e300):
        scaled = solve(Game(2, gruel), 11)
        assert scaled.assigners == (1,)
        np.testing.assert_allclose(scaled.bowls, np.multiply(plan.bowls, gruel), rtol=1e-12)
        assert scaled.value == pytest.approx(plan.value * gruel, rel=1e-12)
    fine = solve(Game(2, 5.0), 201)
    np.testing.assert_allclose(fine.bowls, [5 * (1 - 0.5**0.5), 5 * 0.5**0.5], atol=0.03)
    assert fine.value == pytest.approx(-10 * (0.5**0.5 - 0.5), abs=0.06)
    assert solve(Game(1, 3.0), 11).value == 0.0
    assert solve(Game(5), 11).assigners == (2,)  # 11 ** 5 ways


@pytest.fixture(scope="module")
def learned():
    monastery = Monastery(Game(2), MonksConfig())
    return monastery, *monastery.learn(np.uint32(0))


def test_independent_learners_find_the_solution_of_two_monks(learned):
    _, _, rounds = learned
    last = jax.tree.map(lambda x: np.asarray(x)[-LAST:].mean(axis=0), rounds)
    assert np.asarray(rounds.system_return)[0] == pytest.approx(-0.58, abs=0.05)
    assert last.assigners[0, 1] > 0.95  # monk 2 shares out first ...
    assert last.assigners[1, 1] > 0.6  # ... and may then help itself,
    np.testing.assert_allclose(last.bowls, [0.3, 0.7], atol=0.1)  # because it was generous enough
    found = [*last.bowls, last.system_return, last.assigners[1, 1]]
    row = re.search(r"^\| 300 \| 0 \|(.*)\|$", PAGE.read_text(), re.MULTILINE)
    shown = [float(cell.rstrip(" %")) / (100 if "%" in cell else 1) for cell in row[1].split("|")]
    np.testing.assert_allclose(found, shown, atol=0.03, err_msg="docs/monks.md shows other figures")


def play_games(env, players, games, seed):
    """The mean return of every agent."""
    rng, acting = np.random.default_rng(seed), to_numpy(players)
    totals = dict.fromkeys(env.possible_agents, 0.0)
    for _ in range(games):
        env.reset()
        for agent in env.agent_iter():
            observation, reward, termination, _, _ = env.last()
            totals[agent] += reward / games
            env.step(None if termination else _choose(env, acting, agent, observation, rng))
    return totals


def _choose(env, players, agent, observation, rng):
    step, left = len(env.bowls), observation[-1:]
    if agent == SYSTEM:
        policy = jax.tree.map(lambda x: x[step], players.system)
    else:
        policy = jax.tree.map(lambda x: x[env.monks.index(agent), step], players.monks)
    choices = policy.net.layers[-1].bias.size
    chosen = int(policy.sample(left, rng.gumbel(size=choices).astype(np.float32)))
    return chosen if agent == SYSTEM else np.array([chosen / (choices - 1)], np.float32)


def test_learned_players_earn_the_same_in_the_pettingzoo_environment(learned):
    _, players, rounds = learned
    found = play_games(MonksAndGruel(2), players, games=200, seed=0)
    last = jax.tree.map(lambda x: np.asarray(x)[-5:].mean(axis=0), rounds)
    assert found[SYSTEM] == pytest.approx(last.system_return, abs=0.1)
    np.testing.assert_allclose([found["monk_1"], found["monk_2"]], last.bowls, atol=0.1)


def test_the_learners_games_are_those_of_the_environment():
    monastery = Monastery(Game(3, 2.0), MonksConfig(games=4, rounds=1))
    play = monastery.play(monastery.init(jax.random.key(0)), jax.random.key(1))
    system, monks = (np.asarray(x) for x in monastery.returns(play))
    for game in range(4):
        env = MonksAndGruel(3, 2.0)
        env.reset()
        totals = dict.fromkeys(env.agents, 0.0)
        for step in range(3):
            for agent, reward in give(
                env, int(play.assigner[step, game]), float(play.portion[step, game]) / 10
            ).items():
                totals[agent] += reward
        np.testing.assert_allclose(env.bowls, 2 * play.amount[:, game], atol=1e-6)  # learners see parts of the gruel
        np.testing.assert_allclose(2 * system[0, game], totals[SYSTEM], atol=1e-6)
        np.testing.assert_allclose(2 * monks[:, 0, game], [totals[f"monk_{i}"] for i in (1, 2, 3)], atol=1e-6)
        np.testing.assert_allclose(monks[0, 1:, game], 0.0)  # served at step 1: nothing is left to win


@pytest.mark.parametrize("number", [0, -1, 2.5, True, "3"])
def test_an_invalid_number_of_monks_is_an_error(number):
    with pytest.raises(UsageError, match=r"num_monks \(--monks\) is .*; expected a whole number of at least 1"):
        MonksAndGruel(number)


def test_other_bad_settings(capsys, monkeypatch):
    for gruel in (0.0, float("nan"), float("inf"), 1e-320, 10**400, 1j, "much"):
        with pytest.raises(UsageError, match=r"gruel \(--gruel\) is .*; expected a positive"):
            Game(2, gruel)
    with pytest.raises(UsageError, match="portions is 1; expected at least 2"):
        MonksConfig(portions=1)
    with pytest.raises(UsageError, match="entropy is inf; expected a number of at least 0"):
        MonksConfig(entropy=float("inf"))
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    monkeypatch.delitem(sys.modules, "bipars.monks.environment")
    with pytest.raises(UsageError, match="pip install 'bipars\\[monks\\]'"):
        import bipars.monks.environment  # noqa: F401


def test_the_command_prints_what_was_learned(capsys):
    assert main(["monks", "--monks", "2", "--learn.rounds", "3", "--learn.games", "16"]) == 0
    out = capsys.readouterr().out
    assert "| step | the system names |" in out
    assert "solved exactly:  -0.4; monk 2 is named first, and the bowls are 0.3, 0.7" in out


def test_any_amount_of_gruel_is_learned_alike(capsys):
    tables = []
    for gruel in ("1e300", "1e-300"):
        assert main(["monks", "--gruel", gruel, "--learn.rounds", "3", "--learn.games", "16"]) == 0
        tables.append(capsys.readouterr().out)
    assert "solved exactly:  -4e+299; monk 2 is named first, and the bowls are 3e+299, 7e+299" in tables[0]
    assert "in the last 3 rounds" in tables[0]
    unit = [re.sub(r"e[+-]\d+", "", table) for table in tables]
    assert [line for line in unit[0].splitlines() if line[:1] == "|"] == [
        line for line in unit[1].splitlines() if line[:1] == "|"
    ]


def test_what_takes_too_long_is_not_solved(capsys):
    """101 ** 4 ways to share out."""
    assert main(["monks", "--monks", "4", "--learn.portions", "101", "--learn.rounds", "1", "--learn.games", "4"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "not solved exactly: with 101 portions that takes too long beyond --monks 2"
    assert "in the only round" in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--monks", "0"], "num_monks (--monks) is 0"),
        (
            ["--monks", "1000000"],
            "is 1000000; with 512 games and 11 portions 160 can be learned at most, in 4 GiB",
        ),
        (["--learn.portions", "1"], "--learn.portions is 1;"),
        (["--learn.portions", "100000000"], "512 games and 100000000 portions 0 can be learned"),
        (["--learn.rounds", "0"], "--learn.rounds is 0;"),
        (["--learn.entropy", "-1"], "--learn.entropy is -1.0;"),
        (["--learn.clip", "nan"], "--learn.clip is nan;"),
        (["--learn.hidden", "0"], "--learn.hidden is (0,);"),
    ],
)
def test_the_command_names_its_flags(flags, message, capsys):
    assert main(["monks", *flags]) == 2
    assert message in capsys.readouterr().err
