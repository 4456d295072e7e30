"""Moving pictures of an episode."""

from itertools import pairwise

import gymnasium
import numpy as np
import pytest
from PIL import Image

import bipars
from bipars.cli import main
from bipars.envs.registry import find_family
from bipars.errors import UsageError
from bipars.report.render import make_drawn, render_episode

SMALL = {"update_period": 40, "num_envs": 2, "gradient_steps": 1, "batch_size": 8, "policy_hidden": (4,)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    agent = bipars.BiPaRS("cartpole", terms=["harmful", "noise"], method="ns", ppo=SMALL)
    return agent.save(tmp_path_factory.mktemp("agents") / "agent")


def frames(path):
    with Image.open(path) as image:
        found = []
        for i in range(image.n_frames):
            image.seek(i)
            found.append(np.asarray(image.convert("RGB")))
        return found


def test_a_gif_of_cartpole(saved, tmp_path, capsys):
    out = tmp_path / "new" / "episode.gif"
    assert main(["render", str(saved), "--out", str(out), "--frames", "5", "--seed", "3"]) == 0
    assert f"written: {out}" in capsys.readouterr().out
    pictures = frames(out)
    assert 3 <= len(pictures) <= 6
    assert pictures[0].shape == (480, 960, 3)
    assert all((a != b).any() for a, b in pairwise(pictures))


def test_an_mp4(saved, tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    out = render_episode(bipars.BiPaRS.load(saved), tmp_path / "episode.mp4", frames=4)
    assert out.read_bytes()[4:8] == b"ftyp"


def test_the_pole_leans_where_it_leans():
    blue = [(0.0, 0.0, angle, 0.0) for angle in (-0.2, 0.2)]
    columns = []
    for state in blue:
        pixels = find_family("cartpole").draw(np.array(state)).astype(int)
        pole = (pixels[:250, :, 2] > 150) & (pixels[:250, :, 0] < 60)
        columns.append(np.nonzero(pole)[1].mean())
    assert columns[0] < 240 < columns[1]


def test_mujoco_is_drawn(tmp_path, monkeypatch):
    pytest.importorskip("mujoco")
    monkeypatch.setenv("MUJOCO_GL", "egl")
    try:
        make_drawn("Hopper-v5", {}).close()
    except UsageError as error:
        pytest.skip(f"no EGL here: {error}")
    agent = bipars.BiPaRS("Hopper-v5", terms=["torque"], method="mgl", ppo=SMALL)
    pictures = frames(render_episode(agent, tmp_path / "hopper.gif", frames=2))
    left = pictures[0][:, :480]
    assert left.std() > 20


def test_without_a_renderer_it_says_what_to_install(monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("an OpenGL platform library has not been loaded")

    monkeypatch.setattr(gymnasium, "make", fail)
    with pytest.raises(UsageError, match="apt install libegl1 libgl1-mesa-dri"):
        make_drawn("Hopper-v5", {})


class Blind(gymnasium.Env):
    metadata = {"render_modes": []}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)


def test_bad_requests_are_named(saved, tmp_path, capsys):
    gymnasium.register("tests/Blind-v0", Blind)
    with pytest.raises(UsageError, match="environment 'tests/Blind-v0' cannot draw itself"):
        make_drawn("tests/Blind-v0", {})
    assert main(["render", str(saved), "--out", str(tmp_path / "x.webm")]) == 2
    assert main(["render", str(saved), "--frames", "0"]) == 2
    assert main(["render", str(tmp_path / "nowhere")]) == 2
    text = capsys.readouterr().err
    assert "expected a name that ends in .gif or .mp4" in text
    assert "--frames is 0" in text
    assert "is not a run of bipars" in text
