"""Reports in Python: a short training whose terms are known to help, to harm, and to be noise."""

import gymnasium
import numpy as np
import pytest

import bipars
from bipars.cli import main
from fake_runs import fake_cell

GOAL = np.array([0.6, 0.6], np.float32)


class Point(gymnasium.Env):
    """A point in a square that must reach a goal: 1 there, 0 everywhere else."""

    observation_space = gymnasium.spaces.Box(-1.5, 1.5, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    reward_at_goal = 1.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.time = self.np_random.uniform(-1, 1, 2).astype(np.float32), 0
        return self.place.copy(), {}

    def step(self, action):
        self.place = np.clip(self.place + 0.1 * np.clip(action, -1, 1), -1, 1).astype(np.float32)
        self.time += 1
        there = bool(distance(self.place) < 0.25)
        return self.place.copy(), self.reward_at_goal * there, there, self.time >= 40, {}


class Pointless(Point):
    """The same, and nothing is ever paid."""

    reward_at_goal = 0.0


def distance(place):
    return float(np.linalg.norm(place - GOAL))


def terms():
    rng = np.random.default_rng(0)
    return [
        bipars.RewardTerm("toward", lambda obs, action, next_obs, info: distance(obs) - distance(next_obs)),
        bipars.RewardTerm("away", lambda obs, action, next_obs, info: 0.1 * distance(next_obs)),
        bipars.RewardTerm("noise", lambda obs, action, next_obs, info: rng.normal()),
    ]


@pytest.fixture(scope="module")
def agent():
    return bipars.BiPaRS(Point, terms=terms(), method="mgl", seed=0).learn(60_000)


def test_the_verdicts_are_right(agent, tmp_path):
    report = agent.report(tmp_path / "report.html")
    assert {v.term: v.advice for v in report.verdicts} == {"toward": "keep", "away": "reverse", "noise": "drop"}
    assert all(v.evidence and v.strength != "none" for v in report.verdicts)
    assert report.path == tmp_path / "report.html"
    page = report.path.read_text()
    assert page.count('<span class="badge reverse">reverse</span>') == 2  # in the table and in words
    assert "toward: keep. What it rewards led to more true return" in report.text
    assert str(report) == report.text
    assert "bipars.compare(" in report.text
    shown = report._repr_html_()
    assert "<b>away</b>" in shown
    assert "led to less true return" in shown
    assert repr(report) == "Report(toward: keep, away: reverse, noise: drop)"


def test_a_path_is_optional_and_nothing_is_left_behind(agent, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert len(agent.report().verdicts) == 3
    assert list(tmp_path.iterdir()) == []


def test_a_saved_agent_can_be_reported(agent, tmp_path, capsys):
    agent.save(tmp_path / "saved")
    loaded = bipars.BiPaRS.load(tmp_path / "saved", env=Point, terms=terms())
    assert len(loaded.metrics) == len(agent.metrics)
    assert loaded.report().text == agent.report().text
    assert main(["report", str(tmp_path / "saved")]) == 0
    assert "\naway    reverse  " in capsys.readouterr().out
    assert (tmp_path / "saved" / "report.html").exists()
    loaded.learn(2_048)
    assert loaded.metrics[-1]["round"] == len(loaded.metrics) == len(agent.metrics) + 1
    loaded.save(tmp_path / "saved")  # the report's own files are no obstacle
    assert bipars.BiPaRS.load(tmp_path / "saved", env=Point, terms=terms()).metrics[-1] == loaded.metrics[-1]


def test_a_true_reward_that_is_never_seen_tells_nothing_of_any_term():
    nothing = bipars.RewardTerm("nothing", lambda obs, action, next_obs, info: 0.0)
    twice = bipars.RewardTerm("twice", lambda obs, action, next_obs, info: 2 * (distance(obs) - distance(next_obs)))
    agent = bipars.BiPaRS(Pointless, terms=[terms()[0], twice, nothing])
    with pytest.warns(UserWarning, match="^term '") as warned:
        agent.learn(6_144)
    twin, zero = (str(warning.message) for warning in warned)
    assert twin == "term 'twice' is the same as term 'toward', up to its scale: keep one of them"
    assert zero.startswith("term 'nothing' is 0 in all 2,048 steps looked at: it changes nothing")
    report = agent.report()
    assert [v.advice for v in report.verdicts] == ["unsure", "drop", "drop"]
    assert report.together.startswith("Nothing can be said about any single term: the true return was 0 in every")
    assert "It is the same as 'toward'" in report.verdicts[1].evidence


def test_compare_trains_every_rival_on_every_seed_once(tmp_path):
    settings = {"ppo": {"gradient_steps": 4}, "evaluation_episodes": 2}
    out = tmp_path / "out"
    report = bipars.compare(Point, terms()[:2], 2_048, seeds=[0, 3], out=out, path=tmp_path / "page.html", **settings)
    made = {str(file.parent.relative_to(out)) for file in out.rglob("config.json")}
    names = ("mgl", "ns", "ppo", "frozen", "scalars")
    assert made == {f"compare/{name}/seed-000{seed}" for name in names for seed in (0, 3)}
    assert [v.term for v in report.verdicts] == ["toward", "away"]
    assert "Both terms together, with learned weights: true return" in report.together
    assert "A fresh agent on the frozen weights" in report.together
    assert "A fresh agent on those weights, as one number per term" in report.together
    assert (tmp_path / "page.html").exists()
    stamps = {file: file.stat().st_mtime_ns for file in out.rglob("metrics.jsonl")}
    again = bipars.compare(Point, terms()[:2], 2_048, seeds=[0, 3], out=out, **settings)
    assert again.text == report.text
    assert {file: file.stat().st_mtime_ns for file in out.rglob("metrics.jsonl")} == stamps


# Bad input


def test_there_is_nothing_to_report_before_learning():
    with pytest.raises(bipars.BiparsError, match=r"has not learned yet.*call agent.learn"):
        bipars.BiPaRS("cartpole", terms=["harmful"]).report()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"env": Point()}, "env is .*expected a Gymnasium id, a function that makes an environment"),
        ({"seeds": 0}, "seeds is 0; expected how many, or which"),
        ({"method": "ppo"}, "method is 'ppo', which learns no weights"),
    ],
)
def test_what_cannot_be_compared_is_refused(change, message):
    settings = {"env": Point, "terms": terms(), "total_timesteps": 10, "seeds": 1} | change
    with pytest.raises(bipars.BiparsError, match=message):
        bipars.compare(**settings)


def test_a_page_of_somebody_else_is_not_replaced(agent, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<!doctype html><title>years of work</title>")
    with pytest.raises(bipars.BiparsError, match="path is .*which is no page of `bipars report`"):
        agent.report(page)


def test_an_agent_of_python_is_not_trained_again_by_a_command(tmp_path, capsys):
    fake_cell(tmp_path, "mgl", [0.0], weight=1.0)
    about = tmp_path / "seed-0000" / "config.json"
    about.write_text(about.read_text().replace('"kind": "run"', '"kind": "agent"'))
    assert main(["report", str(tmp_path), "--ablate"]) == 2
    assert "is a saved agent; --compare and --ablate are for runs of `bipars train`" in capsys.readouterr().err
