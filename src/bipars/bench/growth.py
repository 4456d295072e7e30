"""How the time of one step of phi grows with n, m and K: the estimator alone, on a minibatch of 1024 samples.

A whole update would hide the growth behind stepping the environments and training the critics.
"""

import functools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from bipars.runtime import keep_freed_memory, use_cores

if TYPE_CHECKING:
    from bipars.train import BiLevel

SMALL = 8
"""Width of the two hidden layers of a network that does not grow."""
NARROW, WIDE = (8, 24, 56, 112), (8, 32, 96, 256)
"""Widths of the policy, where an n x m matrix is kept and where none is."""
WEIGHT_WIDTHS = (8, 24, 48, 80)
LENGTHS = (1, 2, 5, 10, 20)
LEAST_CALLS, MOST_CALLS, ENOUGH_SECONDS = 3, 30, 0.3
JACOBIAN = "dA~/dphi"
"""What mgl, imgl and unrolled compute once per update, for all its samples, before any step of phi."""


class Line(NamedTuple):
    """One line of the figure: a method, what grows, and the slope on log axes that docs/methods claims."""

    label: str
    settings: dict[str, Any]
    grows: str
    """n (policy parameters), m (weight parameters) or K (steps that are differentiated)."""
    sizes: tuple[int, ...]
    """Widths of the growing network, or numbers of steps."""
    claim: str = "1"


MGL, UNROLLED = {"method": "mgl"}, {"method": "unrolled"}
NONE, OPG, EXACT = ({"method": "imgl", "upper": {"second_order": form}} for form in ("none", "opg", "exact"))
LINES = (
    Line("mgl", MGL, "n", WIDE),
    Line("imgl none", NONE, "n", NARROW),
    Line("imgl opg", OPG, "n", NARROW),
    Line("imgl exact", EXACT, "n", NARROW, "1, as n > m"),
    Line("unrolled K=5", UNROLLED, "n", WIDE),
    Line(JACOBIAN, MGL, "m", WEIGHT_WIDTHS),
    Line("mgl", MGL, "m", WEIGHT_WIDTHS),
    Line("imgl none", NONE, "m", WEIGHT_WIDTHS),
    Line("imgl opg", OPG, "m", WEIGHT_WIDTHS),
    Line("imgl exact", EXACT, "m", WEIGHT_WIDTHS),
    Line("unrolled K=5", UNROLLED, "m", WEIGHT_WIDTHS),
    Line("unrolled", UNROLLED, "K", LENGTHS),
)


class Point(NamedTuple):
    n: int
    m: int
    K: int
    seconds: float


def measure_line(number: int) -> list[Point]:
    use_cores([0])
    keep_freed_memory()
    return [measure_point(LINES[number], size) for size in LINES[number].sizes]


def measure_point(line: Line, size: int) -> Point:
    """One size: seconds of one step of phi, or of the derivatives for a whole update."""
    import jax

    from bipars.nets.mlp import count_parameters
    from bipars.program import build, complete, configure
    from bipars.upper.mgl import advantage_jacobian

    width = {"n": SMALL, "m": SMALL} | ({} if line.grows == "K" else {line.grows: size})
    settings = {
        **line.settings,
        "preset": "paper",
        "terms": ["harmful"],
        "ppo": {"policy_hidden": [width["n"]] * 2},
        "weights": {"hidden": [width["m"]] * 2},
        "upper": line.settings.get("upper", {}) | ({"unroll": size} if line.grows == "K" else {}),
    }
    config = complete(configure(settings))
    loop = build(config).algorithm
    estimator = _estimator(loop.upper)
    remembered, (step, after, weights), data = _invent(lambda: _shapes(loop, estimator))
    if line.label == JACOBIAN:
        work = jax.jit(functools.partial(advantage_jacobian, discount=config.ppo.gamma))
        seconds = _median_seconds(lambda last: (work(weights, data), last), remembered)
    else:
        update = jax.jit(estimator.update, donate_argnums=0)
        seconds = _median_seconds(lambda past: update(past, step, after, weights), remembered)
    return Point(count_parameters(step.policy), count_parameters(weights), config.upper.unroll, seconds)


def _estimator(level: Any) -> Any:
    """What is inside all wrappers and the schedule."""
    while not hasattr(level, "estimator"):
        level = level.upper
    return level.estimator


def _shapes(loop: "BiLevel", estimator: Any) -> Any:
    """What an estimator remembers, the rest of what its `update` takes, and a batch's data for dA~/dphi."""
    import jax
    import jax.numpy as jnp

    from bipars.lower.ppo import PPO
    from bipars.upper.schedule import Pending

    assert isinstance(loop.lower, PPO)
    lower, state = loop.lower, loop.init_networks(jax.random.key(0), None, None)
    samples = lower.empty_minibatch(state.weights, jacobian=True)
    step = lower.step(state.learner, state.weights, samples)[1]
    after = lower.after(state.learner.policy, samples._replace(advantage_jacobian=None))
    ppo = lower.config
    lead = (ppo.update_period // ppo.num_envs, ppo.num_envs)
    terms, done = jnp.zeros((*lead, 1)), jnp.zeros(lead)
    data = Pending(step.policy, lower.empty_samples(ppo.update_period), terms, done, jnp.ones(()), done)
    remembered = estimator.init(state.learner.policy, state.weights, samples)
    return remembered, (step, after, state.weights), data


def _invent(shapes: Callable[[], Any]) -> Any:
    """Numbers from 0 to 0.2, and ones for whole numbers: nothing is compiled for what is not timed."""
    import jax
    import numpy as np

    rng = np.random.default_rng(0)

    def fill(x: jax.ShapeDtypeStruct) -> jax.Array:
        numbers = rng.uniform(0, 0.2, x.shape) if x.dtype == np.float32 else np.ones(x.shape)
        return jax.device_put((numbers if x.dtype != bool else 0 * numbers).astype(x.dtype))

    return jax.tree.map(fill, jax.eval_shape(shapes))


def _median_seconds(work: Callable[[Any], tuple[Any, Any]], state: Any) -> float:
    """Of one call, each with the state that the one before returned, after a first that compiles.

    What else it returns is not kept: the next call finds its memory again, as in training.
    """
    import jax
    import numpy as np

    state = jax.block_until_ready(work(state))[1]
    seconds: list[float] = []
    while len(seconds) < LEAST_CALLS or (sum(seconds) < ENOUGH_SECONDS and len(seconds) < MOST_CALLS):
        began = time.perf_counter()
        state = jax.block_until_ready(work(state))[1]
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds))


def slopes(line: Line, points: Sequence[Point]) -> tuple[float, float]:
    """On log axes: fitted through all points, and between the last two, where fixed costs count least."""
    import numpy as np

    size = np.log([getattr(point, line.grows) for point in points])
    seconds = np.log([point.seconds for point in points])
    return float(np.polyfit(size, seconds, 1)[0]), float((seconds[-1] - seconds[-2]) / (size[-1] - size[-2]))
