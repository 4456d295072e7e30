"""The benchmarks measure what they print. How fast anything is, no test says."""

import pytest

pytest.importorskip("mujoco")

from bipars.bench import mujoco


@pytest.mark.parametrize(("what", "arguments"), [("fast", (400, 1)), ("fast", (400, 2)), ("gymnasium", (400,))])
def test_environments_alone_are_really_stepped(what, arguments):
    assert mujoco._child(what, "Hopper-v5", *arguments) > 0


def test_every_ratio_stands_beside_the_rate_it_is_of(monkeypatch, capsys):
    asked = []

    def measure(what, task, *more):
        asked.append((what, task, *more))
        rates = {"fast": 1000 * more[-1], "gymnasium": 500, "training": 900, "peer": 300}
        return rates[what] - 300 * ("mgl" in more)

    monkeypatch.setattr(mujoco, "_child", measure)
    monkeypatch.setattr(mujoco, "find_spec", lambda name: True)
    assert mujoco.run_bench(3) == 0
    text = capsys.readouterr().out
    assert "ours 4.00 times that (bound 1.5)" in text
    assert "90% of the environments alone (bound 80 %)" in text
    assert "1.50 times ppo's time (bound 1.3)" in text
    assert "ours 3.00 times that (bound 2)" in text
    assert {task for _, task, *_ in asked} == set(mujoco.TASKS)
    assert ("training", "Humanoid-v5", "ppo", 3, 2) in asked
