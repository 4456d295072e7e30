"""`bipars render`: an episode as a moving picture, the agent on the left, its weighted terms on the right."""

import io
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from bipars.envs.registry import find_family
from bipars.errors import UsageError, printable
from bipars.report.curves import COLOURS
from bipars.results.summary import short_name
from bipars.runs.files import write_atomically
from bipars.trained import TrainedAgent

SIZE = 480
"""Height of the picture and width of its left half; sides are multiples of 16, which video wants."""
KINDS = (".gif", ".mp4")
INK, SOFT, PAPER = "#1b2027", "#5b6570", "#ffffff"
LONGEST = 10_000


@dataclass(frozen=True)
class Step:
    """One step of the episode."""

    picture: Image.Image
    reward: float
    terms: np.ndarray
    weights: np.ndarray


def render(run: Path, out: Path | None, seed: int, frames: int) -> Path:
    """The newest checkpoint of a run, or a saved agent."""
    if frames < 1:
        raise UsageError(f"--frames is {frames}; expected at least 1")
    if seed < 0:
        raise UsageError(f"--seed is {seed}; expected at least 0")
    path = run / "episode.gif" if out is None else out
    check_kind(path)
    if not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")  # before MuJoCo is imported
    return render_episode(TrainedAgent.load(run), path, seed, frames)


def check_kind(path: Path) -> None:
    if path.suffix.lower() not in KINDS:
        raise UsageError(f"--out is {path}; expected a name that ends in {' or '.join(KINDS)}")
    if path.suffix.lower() == ".mp4":
        find_ffmpeg()


def render_episode(agent: TrainedAgent, path: Path, seed: int = 0, frames: int = 300) -> Path:
    """Acts greedily in one episode and draws it. For agents with terms of your own, call this from Python."""
    check_kind(path)
    env = make_drawn(agent.config.env, agent.config.env_options)
    try:
        rate = int(env.metadata.get("render_fps") or 50)
        moments = list(play(agent, env, seed))
    finally:
        env.close()
    every = -(-len(moments) // frames)
    names = [printable(short_name(term.name)) for term in agent.terms]
    title = printable(f"{agent.config.env}, {agent.config.method}")
    pictures = list(compose(moments, names, title, every))
    content = to_gif(pictures, min(rate, 30)) if path.suffix.lower() == ".gif" else to_mp4(pictures, min(rate, 30))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
    return path


def make_drawn(name: str, options: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    """The environment in a form that can be drawn."""
    family, given = find_family(name), dict(options)
    if family.make_jax is not None and "max_steps" in given:
        given["max_episode_steps"] = given.pop("max_steps")
    try:
        if family.draw is not None:
            return gymnasium.make(name, **given)
        env = gymnasium.make(name, render_mode="rgb_array", **given)
        env.reset(seed=0)
        env.render()
    except Exception as error:  # whatever a renderer of somebody's raises
        hint = ""
        if "mujoco" in type(error).__module__ or "gl" in repr(error).lower():
            hint = (
                ". Drawing MuJoCo without a screen needs EGL (Debian: apt install libegl1 libgl1-mesa-dri) or OSMesa "
                "(apt install libosmesa6, then MUJOCO_GL=osmesa)"
            )
        raise UsageError(f"environment '{name}' cannot draw itself: {error or type(error).__name__}{hint}") from error
    return env


def play(agent: TrainedAgent, env: gymnasium.Env[Any, Any], seed: int) -> Iterator[Step]:
    """A greedy episode, step by step."""
    shaped = agent.shaped_env(env)
    draw = find_family(agent.config.env).draw
    obs, _ = shaped.reset(seed=seed)
    for _ in range(LONGEST):
        picture = _square(env.render() if draw is None else draw(obs))
        action, _ = agent.predict(obs, deterministic=True)
        obs, _, terminated, truncated, info = shaped.step(action)
        values = np.array([[info[f"term/{t.name}"], info[f"weight/{t.name}"]] for t in agent.terms]).reshape(-1, 2)
        yield Step(picture, float(info["true_reward"]), values[:, 0], values[:, 1])
        if terminated or truncated:
            return


def _square(pixels: Any) -> Image.Image:
    """A rendered frame, fitted into the left half."""
    image = Image.fromarray(np.asarray(pixels, np.uint8))
    image.thumbnail((SIZE, SIZE))
    canvas = Image.new("RGB", (SIZE, SIZE), PAPER)
    canvas.paste(image, ((SIZE - image.width) // 2, (SIZE - image.height) // 2))
    return canvas


def compose(moments: list[Step], names: list[str], title: str, every: int) -> Iterator[Image.Image]:
    """Every so many moments as one picture of both halves, the last among them."""
    products = np.array([m.terms * m.weights for m in moments]).reshape(len(moments), len(names))
    rewards = np.array([m.reward for m in moments])
    chart, (left, right, top, bottom) = _chart(rewards, products, names)
    largest = max(1e-9, float(np.abs(products).max(initial=0.0)), float(np.abs(rewards).max()))
    total = np.cumsum(rewards)
    shown = sorted({*range(0, len(moments), every), len(moments) - 1})
    for t in shown:
        picture = Image.new("RGB", (2 * SIZE, SIZE), PAPER)
        picture.paste(moments[t].picture, (0, 0))
        picture.paste(chart, (SIZE, SIZE - chart.height))
        draw = ImageDraw.Draw(picture)
        place = SIZE + left + (right - left) * (t + 0.5) / len(moments)
        draw.line([(place, SIZE - chart.height + top), (place, SIZE - chart.height + bottom)], INK, 2)
        draw.text((SIZE + 16, 14), title, INK, _font(18))
        draw.text((SIZE + 16, 40), f"step {t + 1}, true return so far {total[t]:.3g}", SOFT, _font(14))
        rows = [("true reward", None, rewards[t], COLOURS[-1])]
        rows += [(n, moments[t].weights[k], products[t, k], COLOURS[k % 6]) for k, n in enumerate(names)]
        for i, (name, weight, value, colour) in enumerate(rows[:5]):
            _bar(draw, 70 + 34 * i, name, weight, value / largest, value, colour)
        yield picture


def _bar(
    draw: ImageDraw.ImageDraw, y: int, name: str, weight: float | None, part: float, value: float, colour: str
) -> None:
    """One row: what it is, how much it counts, and what it pays now."""
    words = name if weight is None else f"{name[:18]} x {weight:+.2f}"
    draw.text((SIZE + 16, y + 4), words, INK, _font(14))
    zero, span = SIZE + 300, 80
    ends = sorted((zero, zero + part * span))
    draw.rectangle([ends[0], y + 3, ends[1] + 1, y + 21], colour)
    draw.line([(zero, y), (zero, y + 24)], SOFT, 1)
    draw.text((SIZE + 412, y + 4), f"{value:+.3g}", INK, _font(14))


def _font(size: int) -> Any:
    return ImageFont.load_default(size=size)


def _chart(rewards: np.ndarray, products: np.ndarray, names: list[str]) -> tuple[Image.Image, tuple[float, ...]]:
    """The whole episode, stacked, drawn once; and the edges of its axes in pixels."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    from bipars.report.figures import stack

    height = 210
    with matplotlib.rc_context({"text.parse_math": False, "font.size": 8}):
        figure, axes = plt.subplots(figsize=(SIZE / 100, height / 100), dpi=100)
        figure.subplots_adjust(left=0.13, right=0.96, bottom=0.2, top=0.94)
        stack(axes, rewards, products.T)
        axes.set_xlabel("step of the episode")
        axes.set_xlim(0.5, len(rewards) + 0.5)
        out = io.BytesIO()
        figure.savefig(out, format="png")
        box = axes.get_position()
        plt.close(figure)
    edges = (box.x0 * SIZE, box.x1 * SIZE, (1 - box.y1) * height, (1 - box.y0) * height)
    return Image.open(out).convert("RGB"), edges


def to_gif(pictures: list[Image.Image], rate: int) -> bytes:
    small = [picture.quantize(64) for picture in pictures]
    out = io.BytesIO()
    small[0].save(
        out, "GIF", save_all=True, append_images=small[1:], duration=round(1000 / rate), loop=0, optimize=True
    )
    return out.getvalue()


def to_mp4(pictures: list[Image.Image], rate: int) -> bytes:
    """By ffmpeg, which `imageio-ffmpeg` brings along; a file, since an MP4 is not written from front to back."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "episode.mp4"
        source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{2 * SIZE}x{SIZE}", "-r", str(rate), "-i", "-"]
        command = [find_ffmpeg(), "-loglevel", "error", *source, "-pix_fmt", "yuv420p", str(path)]
        raw = b"".join(picture.tobytes() for picture in pictures)
        done = subprocess.run(command, input=raw, capture_output=True, check=False)
        if done.returncode:
            raise UsageError(f"ffmpeg failed: {done.stderr.decode(errors='replace').strip()}. Write a .gif instead")
        return path.read_bytes()


def find_ffmpeg() -> str:
    try:
        from imageio_ffmpeg import get_ffmpeg_exe
    except ImportError as error:
        raise UsageError("an .mp4 needs a video encoder: pip install 'bipars[video]'. A .gif needs nothing") from error
    return get_ffmpeg_exe()
