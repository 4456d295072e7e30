"""Many steps of MuJoCo at a time: the policy acts and the bodies move in compiled code, without a return to Python.

Python between two steps would cost as much as the physics of a small body, and only one core at a time could run it.
The functions below need no lock of Python's: each thread takes its environments through all steps by itself.

They trust what they are given: shapes are checked by who calls them. A fatal error of MuJoCo's, which the five tasks
have never shown, ends the process here as it would in C.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import mujoco
import numba
import numpy as np
from llvmlite import binding
from numba import types

from bipars.nets.network import Network, Networks

STATE = mujoco.mjtState
WHOLE = STATE.mjSTATE_INTEGRATION
"""All that MuJoCo needs to go on from, warm starts included."""
NUMBER = 8
"""Bytes of one of MuJoCo's numbers."""
STRIDE = 100
"""Steps after which a thread looks whether it is still wanted."""

# Numba finds C's functions by name and hands them addresses.
for library in Path(mujoco.__file__).parent.glob("*mujoco*"):
    if {".so", ".dylib", ".dll"} & set(library.suffixes):
        binding.load_library_permanently(str(library))
address = types.intp


def _in_c(name: str, *arguments: Any) -> Any:
    return types.ExternalFunction(name, types.void(*arguments))


_step, _forward, _reset, _contact_forces = (
    _in_c(name, address, address) for name in ("mj_step", "mj_forward", "mj_resetData", "mj_rnePostConstraint")
)
_set_state = _in_c("mj_setState", address, address, address, types.int32)
_copy = _in_c("memcpy", address, address, types.uint64)


def without_lock(**options: Any) -> Callable[[Any], Any]:
    """Compiled, and kept for the next process where there is a place to keep it."""

    def compile_later(function: Any) -> Any:
        try:
            return numba.njit(nogil=True, cache=True, **options)(function)
        except RuntimeError:  # neither the package's directory nor the user's cache can be written
            return numba.njit(nogil=True, **options)(function)

    return compile_later


class Rules(NamedTuple):
    """What a task is, in numbers. A row holds the recorded fields of MuJoCo's data, one after the other."""

    frame_skip: int
    max_steps: int
    contacts: bool
    """Whether contact forces are recorded."""
    observed: np.ndarray
    """(obs,): the columns of a row that are observed."""
    limit: np.ndarray
    """(obs,): where they are clipped, either way."""
    healthy: np.ndarray
    """(2, pose): between which ends the pose must stay, or the episode ends; (2, 0) where it need not."""
    mass: np.ndarray
    """(body,): of a task whose place is its centre of mass; elsewhere empty."""
    centres: int
    """The column where the bodies' centres begin."""
    action_low: np.ndarray
    action_span: np.ndarray
    unit: bool
    """Whether actions in [-1, 1] are the task's own."""
    pose: int = int(STATE.mjSTATE_QPOS | STATE.mjSTATE_QVEL)
    """MuJoCo's names of parts of a state. Compiled code that is kept must not remember them: versions differ."""
    control: int = int(STATE.mjSTATE_CTRL)


class Bodies(NamedTuple):
    """The environments, as C knows them."""

    model: int
    data: np.ndarray
    """(env,): addresses."""
    field: np.ndarray
    """(env, field): addresses of what a row records."""
    size: np.ndarray
    """(field,): of how many numbers each is."""


class Starts(NamedTuple):
    """How the next episodes begin."""

    pose: np.ndarray
    """(env, episode, pose)"""
    first: np.ndarray
    """(env,): the number of the first of these episodes."""


class Now(NamedTuple):
    """Where the environments stand; changed from step to step."""

    observation: np.ndarray
    place: np.ndarray
    step: np.ndarray
    episode: np.ndarray
    row: np.ndarray


TAKEN = ("observation", "place", "step", "episode")
"""What both the memory of an environment and `Now` hold."""


class Record(NamedTuple):
    """What happened, (time, env, ...)."""

    obs: np.ndarray
    action: np.ndarray
    """As the policy chose it."""
    left: np.ndarray
    """The place before the step."""
    place: np.ndarray
    """The place after it, before a new episode begins; so too what follows."""
    row: np.ndarray
    next_obs: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


class Runner:
    """Environments of one task that a thread can take through many steps."""

    def __init__(self, model: Any, fields: Mapping[str, int], rules: Rules, num_envs: int, threads: int) -> None:
        """`fields` of MuJoCo's data, with their sizes, are what a row records, the pose first."""
        self._model, self._rules, self._threads = model, rules, threads
        self._data = [mujoco.MjData(model) for _ in range(num_envs)]
        self._row = np.zeros((num_envs, sum(fields.values())))
        self._bodies = Bodies(
            model._address,
            np.array([data._address for data in self._data]),
            np.array([[getattr(data, name).ctypes.data for name in fields] for data in self._data]),
            np.array(list(fields.values())),
        )

    def run(
        self,
        memory: dict[str, np.ndarray],
        starts: Callable[[range, np.ndarray], Starts],
        networks: Networks,
        noise: np.ndarray,
    ) -> tuple[Record, np.ndarray]:
        """What happened in as many steps as there is noise, and the environments' last rows.

        `memory` is where the environments stand; it is taken along when all steps are done. `starts` knows how some
        of the environments begin again, given in which episodes all are.
        """
        rules, lead = self._rules, noise.shape[:2]
        for data, state in zip(self._data, memory["state"], strict=True):
            mujoco.mj_setState(self._model, data, state, WHOLE)
        now = Now(row=self._row, **{name: memory[name].copy() for name in TAKEN})
        record = Record(
            np.empty((*lead, rules.observed.size), np.float32),
            np.empty(noise.shape, np.float32),
            np.empty((*lead, now.place.shape[1])),
            np.empty((*lead, now.place.shape[1])),
            np.empty((*lead, self._row.shape[1])),
            np.empty((*lead, rules.observed.size), np.float32),
            np.empty(lead, bool),
            np.empty(lead, bool),
        )
        offsets = np.empty(noise.shape, np.float32)
        for network, envs in networks:
            group = slice(envs.start, envs.stop)
            offsets[:, group] = noise[:, group] * network.spread

        unwanted = Event()

        def take(part: tuple[Network, range]) -> None:
            (network, envs), time = part, 0
            while time < lead[0] and not unwanted.is_set():
                soon, until = starts(envs, now.episode), min(time + STRIDE, lead[0])
                share = (envs.start, envs.stop, time, until)
                time = _advance(rules, self._bodies, soon, network, offsets, now, record, *share)

        ends = np.linspace(0, lead[1], min(self._threads, lead[1]) + 1).astype(int)
        bounds = sorted({*ends.tolist(), *(envs.start for _, envs in networks)})
        parts = [
            (next(network for network, envs in networks if start in envs), range(start, stop))
            for start, stop in pairwise(bounds)
        ]
        with ThreadPoolExecutor(len(ends) - 1) as threads:
            try:
                list(threads.map(take, parts))
            except BaseException:
                unwanted.set()
                raise
        for data, state in zip(self._data, memory["state"], strict=True):
            mujoco.mj_getState(self._model, data, state, WHOLE)
        for name in TAKEN:
            memory[name][:] = getattr(now, name)
        return record, self._row


@without_lock(fastmath={"contract"})
def _layer(x: Any, weight: Any, bias: Any, out: Any) -> None:
    """Four inputs of two rows at a time: what is loaded serves more often. The order of the sums is the usual one."""
    rows, inputs = x.shape
    for i in range(rows):
        out[i] = bias
    whole = inputs - inputs % 4
    for i in range(0, rows - 1, 2):
        one, two = out[i], out[i + 1]
        for k in range(0, whole, 4):
            a, b, c, d = x[i, k], x[i, k + 1], x[i, k + 2], x[i, k + 3]
            e, f, g, h = x[i + 1, k], x[i + 1, k + 1], x[i + 1, k + 2], x[i + 1, k + 3]
            for j in range(bias.size):
                p, q, r, s = weight[k, j], weight[k + 1, j], weight[k + 2, j], weight[k + 3, j]
                one[j] = one[j] + a * p + b * q + c * r + d * s
                two[j] = two[j] + e * p + f * q + g * r + h * s
    if rows % 2:
        one = out[rows - 1]
        for k in range(0, whole, 4):
            a, b, c, d = x[rows - 1, k], x[rows - 1, k + 1], x[rows - 1, k + 2], x[rows - 1, k + 3]
            for j in range(bias.size):
                one[j] = one[j] + a * weight[k, j] + b * weight[k + 1, j] + c * weight[k + 2, j] + d * weight[k + 3, j]
    for k in range(whole, inputs):
        for i in range(rows):
            a = x[i, k]
            for j in range(bias.size):
                out[i, j] += a * weight[k, j]


@without_lock()
def _act(network: Any, obs: Any, noise: Any, action: Any) -> None:
    """`noise` is the action's distance from its mean."""
    x = np.empty_like(obs)
    for i in range(obs.shape[0]):
        for j in range(obs.shape[1]):
            scaled = (obs[i, j] - network.mean[j]) / network.std[j]
            x[i, j] = min(max(scaled, -network.limit), network.limit)
    last = len(network.weights) - 1
    for layer in range(len(network.weights)):
        out = np.empty((x.shape[0], network.biases[layer].size), np.float32)
        _layer(x, network.weights[layer], network.biases[layer], out)
        if layer < last:
            for i in range(out.shape[0]):
                for j in range(out.shape[1]):
                    out[i, j] = max(out[i, j], np.float32(0.0)) if network.relu else np.tanh(out[i, j])
        x = out
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            action[i, j] = x[i, j] + noise[i, j]


@without_lock()
def _read(bodies: Any, env: int, row: Any) -> None:
    start = row.ctypes.data
    for i in range(bodies.size.size):
        _copy(start, bodies.field[env, i], NUMBER * bodies.size[i])
        start += NUMBER * bodies.size[i]


@without_lock()
def _observe(rules: Any, row: Any, obs: Any) -> None:
    for j in range(obs.size):
        value, limit = np.float32(row[rules.observed[j]]), np.float32(rules.limit[j])
        if value > limit:
            value = limit
        if value < -limit:
            value = -limit
        obs[j] = value  # what is no number stays so


@without_lock()
def _place(rules: Any, row: Any, place: Any) -> None:
    """Added up in NumPy's order: the result is the same to the last bit."""
    for j in range(place.size):
        if rules.mass.size == 0:
            place[j] = row[j]
            continue
        moment, mass = 0.0, 0.0
        for body in range(rules.mass.size):
            moment += rules.mass[body] * row[rules.centres + 3 * body + j]
            mass += rules.mass[body]
        place[j] = moment / mass


@without_lock()
def _look(rules: Any, bodies: Any, now: Any, env: int) -> None:
    row = now.row[env]
    _read(bodies, env, row)
    _observe(rules, row, now.observation[env])
    _place(rules, row, now.place[env])


@without_lock()
def _healthy(rules: Any, row: Any) -> bool:
    for j in range(rules.healthy.shape[1]):  # noqa: SIM110
        if not (rules.healthy[0, j] < row[j] and row[j] < rules.healthy[1, j]):
            return False
    return True


@without_lock()
def _advance(
    rules: Any,
    bodies: Any,
    starts: Any,
    network: Any,
    noise: Any,
    now: Any,
    record: Any,
    first: int,
    end: int,
    time: int,
    until: int,
) -> int:
    """Takes environments `first` to `end` from step `time` to `until`, or to one before which a start is missing."""
    control = np.empty(noise.shape[2])
    half, one = np.float32(0.5), np.float32(1.0)
    for t in range(time, until):
        for env in range(first, end):
            if now.episode[env] + 1 - starts.first[env] >= starts.pose.shape[1]:
                return t
        record.obs[t, first:end] = now.observation[first:end]
        _act(network, now.observation[first:end], noise[t, first:end], record.action[t, first:end])
        for env in range(first, end):
            data = bodies.data[env]
            for j in range(control.size):
                chosen = min(max(record.action[t, env, j], -one), one)
                if not rules.unit:
                    chosen = rules.action_low[j] + rules.action_span[j] * ((chosen + one) * half)
                control[j] = chosen
            record.left[t, env] = now.place[env]
            _set_state(bodies.model, data, control.ctypes.data, rules.control)
            for _ in range(rules.frame_skip):
                _step(bodies.model, data)
            if rules.contacts:
                _contact_forces(bodies.model, data)
            _look(rules, bodies, now, env)
            record.place[t, env] = now.place[env]
            record.row[t, env] = now.row[env]
            record.next_obs[t, env] = now.observation[env]

            now.step[env] += 1
            record.terminated[t, env] = not _healthy(rules, now.row[env])
            record.truncated[t, env] = now.step[env] >= rules.max_steps
            if record.terminated[t, env] or record.truncated[t, env]:
                now.step[env] = 0
                now.episode[env] += 1
                pose = starts.pose[env, now.episode[env] - starts.first[env]]
                _reset(bodies.model, data)
                _set_state(bodies.model, data, pose.ctypes.data, rules.pose)
                _forward(bodies.model, data)
                _look(rules, bodies, now, env)
    return until
