"""A method of one's own, as an object and by its place in a module."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest

import bipars
from bipars.errors import UsageError
from bipars.methods import Method
from bipars.upper.schedule import Fixed
from commands import run, train

EXAMPLES = Path(__file__).parents[2] / "examples"
QUICK = {"update_period": 2000, "num_envs": 10, "gradient_steps": 8, "batch_size": 64}


@pytest.fixture(scope="module")
def sign():
    """The method of examples/own_method.py."""
    spec = importlib.util.spec_from_file_location("own_method", EXAMPLES / "own_method.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.sign


def test_the_example_is_short_and_its_method_lowers_a_harmful_terms_weight(sign):
    assert len((EXAMPLES / "own_method.py").read_text().splitlines()) <= 60
    agent = bipars.BiPaRS("cartpole", terms=["harmful"], method=sign, preset="paper").learn(100_000)
    assert agent.metrics[-1]["weight/harmful"] < 0.5
    assert agent.config.method == "sign"
    assert agent.config.learns_weights


def test_an_object_is_asked_for_again(sign, tmp_path):
    agent = bipars.BiPaRS("cartpole", terms=["harmful"], method=sign, ppo=QUICK).learn(2_000)
    agent.save(tmp_path / "agent")
    with pytest.raises(UsageError, match="trained with a method of your own, 'sign'; pass it again: method="):
        bipars.BiPaRS.load(tmp_path / "agent")
    loaded = bipars.BiPaRS.load(tmp_path / "agent", method=sign)
    loaded.learn(2_000)
    assert loaded.num_timesteps == 4_000


def test_a_name_goes_through_workers_resume_and_the_report(tmp_path):
    out = tmp_path / "runs"
    by_name = ["--method", "import:own_method.sign"]
    assert run(*train(out, *by_name, "--seeds", "0-1"), cwd=EXAMPLES).returncode == 0
    config = json.loads((out / "seed-0001" / "config.json").read_text())["config"]
    assert (config["method"], config["learner"], config["learns_weights"]) == ("import:own_method.sign", "ppo", True)
    (out / "seed-0001" / "result.json").unlink()
    assert run("resume", out, cwd=EXAMPLES).returncode == 0
    report = run("report", out, "--text", cwd=tmp_path)  # where the module is not found
    assert report.returncode == 0, report.stderr
    assert "harmful" in report.stdout


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (3, "method is 3; expected a name, such as 'mgl', or a bipars.Method"),
        ("import:nowhere.thing", "method 'import:nowhere.thing' cannot be imported: No module named 'nowhere'"),
        ("import:bipars.methods.fixed", "is <function fixed.*>; expected a bipars.Method"),
        (Method("no name"), "the method given has the name ''; give it one of its own"),
        (Method("taken", name="mgl"), "the method given has the name 'mgl'; give it one of its own"),
        (
            Method("no upper level", upper=lambda config, lower: {}, learns_weights=True, name="mine"),
            r"method 'mine' builds \{\}, which has no init\(\); an upper level has init",
        ),
    ],
)
def test_what_is_no_method_is_named_before_any_work(method, message):
    with pytest.raises(UsageError, match=message):
        bipars.BiPaRS("cartpole", terms=["harmful"], method=method)


def test_a_setting_that_the_method_has_no_use_for_is_named(tmp_path):
    result = run(*train(tmp_path / "x", "--method", "import:own_method.sign", "--upper.unroll", "3"), cwd=EXAMPLES)
    assert result.returncode == 2
    assert "method 'import:own_method.sign' has no use for --upper.unroll (here 3)" in result.stderr
    assert not (tmp_path / "x").exists()


def test_an_upper_level_of_ones_own_needs_no_estimator():
    """`init` and `update` are all: here, a weight that is lowered by a tenth in every round."""

    class Fading(Fixed):
        def update(self, state, learner, data, key):
            updated = super().update(state, learner, data, key)
            return updated._replace(
                upper=state._replace(weights=replace(state.weights, value=state.weights.value - 0.1))
            )

    method = Method("fading", upper=lambda config, lower: Fading(lower), name="fading", initial_weight=1.0)
    agent = bipars.BiPaRS("cartpole", terms=["harmful"], method=method, ppo=QUICK).learn(6_000)
    assert [row["weight/harmful"] for row in agent.metrics] == pytest.approx([1.0, 0.9, 0.8])
