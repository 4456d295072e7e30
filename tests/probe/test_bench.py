"""The benchmarks measure what they print. How fast anything is, no test says."""

import pytest

from bipars.bench import growth, learner, methods, mujoco
from bipars.bench.growth import LINES, Point, slopes
from bipars.bench.measure import HURRY, apart, measure_updates
from bipars.cli import main

TINY = {"update_period": 200, "num_envs": 4, "gradient_steps": 2, "batch_size": 32}


def test_updates_are_measured_in_a_process_of_their_own():
    settings = {"env": "cartpole-continuous", "terms": ["harmful"], "method": "ppo", "ppo": TINY}
    found = apart(measure_updates, 1, settings, environment=HURRY)
    assert min(found.values()) > 0
    assert found["steps"] == 200


@pytest.mark.parametrize(
    ("number", "sizes"),
    [(0, [(130, 130, 5), (1282, 130, 5)]), (5, [(130, 130, 5), (130, 770, 5)]), (11, [(130, 130, 1), (130, 130, 2)])],
)
def test_what_grows_is_what_the_line_says(number, sizes):
    line = LINES[number]
    points = [growth.measure_point(line, size) for size in line.sizes[:2]]
    assert [(point.n, point.m, point.K) for point in points] == sizes
    assert min(point.seconds for point in points) > 0


def test_slopes_by_hand():
    points = [Point(n, 1, 5, n**2 / 100) for n in (1, 10, 100)] + [Point(1000, 1, 5, 1000.0)]
    fitted, last = slopes(LINES[0], points)
    assert last == pytest.approx(1.0)
    assert fitted == pytest.approx(1.7)


def test_ratios_of_methods_are_to_ppo_and_to_ddpg(monkeypatch, capsys, tmp_path):
    seconds = {"ppo": 0.1, "mgl": 0.25, "ddpg": 0.2, "ddpg-imgl": 0.5}
    asked = []

    def measure(function, what, settings=None, environment=None):
        if function is growth.measure_line:
            return [Point(10**i, 10**i, i, 10**i / 5) for i in range(1, 4)]
        asked.append(settings)
        memory = 12.0 if settings["method"] == "ppo" else 30.0
        return {"seconds": seconds[settings["method"]], "array_megabytes": memory}

    monkeypatch.setattr(methods, "apart", measure)
    names = ["--methods", "mgl", "ddpg-imgl", "--out", str(tmp_path / "out")]
    assert main(["bench", "methods", "--updates", "3", *names]) == 0
    text = capsys.readouterr()
    assert "ddpg-imgl exact                        500.0              2.50" in text.out
    assert [settings["method"] for settings in asked] == ["ppo", "mgl", "ddpg", *["ddpg-imgl"] * 3]
    assert "measuring mgl against m (9 of 9" in text.err
    table = (tmp_path / "out" / "methods.csv").read_text().splitlines()
    assert table[0].split(",")[:4] == ["relative_to", "method", "seconds", "ratio"]
    assert table[2] == "ppo,mgl,0.25,2.5,30.0,2.5"
    assert len((tmp_path / "out" / "growth.csv").read_text().splitlines()) == 1 + 3 * 3
    assert (tmp_path / "out" / "growth.png").read_bytes().startswith(b"\x89PNG")


def test_every_method_is_measured():
    measured = {settings["method"] for _, settings in methods.STOCHASTIC + methods.DETERMINISTIC}
    assert measured == set(methods.METHODS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["methods", "--methods", "mlg"], "unknown method 'mlg'. Did you mean 'mgl'"),
        (["cartpole", "--methods", "mgl"], "bench cartpole does not take --methods; bench methods may"),
        (["methods", "--methods"], "--methods is empty; expected names"),
        (
            ["suite", "--out", "x"],
            "bench suite does not take --out; bench methods, bench jax, bench faults, bench sweep, bench trainer, "
            "bench learner, bench recipe may",
        ),
        (["method"], "unknown benchmark 'method'. Did you mean 'methods'"),
        (["mujoco", "--envs", "30"], "--envs is 30; it must divide the 20,000 steps of an update"),
        (["suite", "--envs", "20"], "bench suite does not take --envs; bench mujoco may"),
    ],
)
def test_bad_requests_are_named(arguments, message, capsys):
    assert main(["bench", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("measure", "arguments"),
    [(mujoco.measure_fast, (4, 1, 400)), (mujoco.measure_fast, (4, 2, 400)), (mujoco.measure_gymnasium, (4, 400))],
)
def test_environments_alone_are_really_stepped(measure, arguments):
    pytest.importorskip("mujoco")
    assert apart(measure, "Hopper-v5", *arguments) > 0


def test_training_is_measured_beside_the_same_steps_without_it():
    """That they are the same, the measurement itself asserts."""
    pytest.importorskip("mujoco")
    training, alone = apart(mujoco.measure_training, "Hopper-v5", 20, 1, "ppo", 1)
    assert training > 0
    assert alone > 0


def test_every_ratio_stands_beside_the_rate_it_is_of(monkeypatch, capsys):
    asked = []

    def measure(function, task, *more):
        what = function.__name__.removeprefix("measure_")
        asked.append((what, task, *more))
        if what == "training":
            return 900 - 300 * ("mgl" in more), 1000 * more[1]
        return {"fast": 1000 * more[-1], "gymnasium": 500, "peer": 300}[what]

    monkeypatch.setattr(mujoco, "apart", measure)
    monkeypatch.setattr(mujoco, "find_spec", lambda name: True)
    assert mujoco.run_bench(3) == 0
    text = capsys.readouterr().out
    assert "ours 4.00 times that (bound 1.5)" in text
    assert "90% of the environments alone (bound 80 %)" in text
    assert "1.50 times ppo's time (bound 1.3)" in text
    assert "ours 3.00 times that (bound 2)" in text
    assert {task for _, task, *_ in asked} == set(mujoco.TASKS)
    assert ("training", "Humanoid-v5", 20, 2, "ppo", 3) in asked


def test_the_learner_is_measured_beside_the_peer_and_a_killed_measurement_goes_on(monkeypatch, capsys, tmp_path):
    asked = []

    def train(function, task, seed, steps):
        if len(asked) == 3:
            asked.append(None)
            raise KeyboardInterrupt
        asked.append((function.__name__, task, seed))
        ours = function is learner.train_ours
        return {"seconds": 10.0 if ours else 50.0, "return": 100.0 + seed if ours else -1.0}

    monkeypatch.setattr(learner, "apart", train)
    command = ["bench", "learner", "--parts", "Pendulum-v1", "--steps", "2000", "--out", str(tmp_path)]
    assert main(command) == 130
    assert main(command) == 0
    sides = ("train_ours", "train_peer")
    assert [one for one in asked if one] == [(side, "Pendulum-v1", seed) for seed in range(3) for side in sides]
    row = "| Pendulum-v1 | 2,000 | 100, 101, 102 | -1, -1, -1 | 200 | 40 | 5.0 |"
    assert row in capsys.readouterr().out
    (tmp_path / "results.csv").write_text("env,seed,steps,end\nHopper-v5,0,2048,3000\nHopper-v5,1,2048,1000\n")
    text = "".join(learner.documented(tmp_path))
    assert row in text
    assert "| Hopper-v5 | 2,048 | 2,000 | 3,000, 1,000 |" in text


@pytest.mark.parametrize("side", learner.SIDES)
def test_both_sides_are_trained(side):
    found = learner.TRAIN[side]("CartPole-v1", 0, 2048)
    assert found["seconds"] > 0
    assert 1 <= found["return"] <= 500
