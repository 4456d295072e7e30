"""Gymnasium's v5 MuJoCo tasks, many at once: MuJoCo steps all of them in one call, NumPy does the rest over the batch.

Observations, rewards, ends and infos equal Gymnasium's to the last bit. That takes `mujoco.batch` (MuJoCo 4):
`mujoco.rollout` does not hand back the solver's warm start, which Gymnasium carries from one step to the next.
Many steps at a time, the policy's acting included, are the business of `mujoco_run`.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Space

from bipars.envs.host import Step, Steps
from bipars.envs.mujoco_tasks import TASKS, Task
from bipars.envs.registry import EnvironmentFamily, register
from bipars.envs.spaces import native_actions
from bipars.errors import UsageError, unknown
from bipars.nets.network import Networks
from bipars.nets.spaces import ActionSpace, BoxActions
from bipars.settings.config import Config, PPOConfig, UpperConfig, WeightConfig
from bipars.settings.recipe import DDPG, LARGE_POTENTIAL

OF_BODIES = ("cinert", "cvel", "qfrc_actuator", "xipos", "ten_length", "ten_velocity")
"""What is recorded of MuJoCo's data where bodies are observed, contact forces aside."""
SOON = 8
"""Starts that are drawn at a time."""


class MujocoEnvironment:
    """`num_envs` copies of one task. Neither `threads` nor the other copies change what a copy does."""

    can_run = True

    def __init__(self, name: str, num_envs: int, threads: int = 1, /, max_steps: int = 1000, **options: Any) -> None:
        if name not in TASKS:
            raise unknown("MuJoCo task", name, TASKS)
        self._task = task = TASKS[name]
        for option in options:
            if option not in task.options:
                raise unknown(f"option of {name}", option, task.options)
        for what, number in (("num_envs", num_envs), ("threads", threads), ("max_steps", max_steps)):
            if number < 1:
                raise UsageError(f"{name}: {what} is {number}; it must be at least 1")
        self._options = {**task.options, **options}
        self.num_envs, self.max_steps = num_envs, max_steps

        self._mujoco, batch, self._compiled = _import(name)
        self._model = model = _load(self._mujoco, task.model)
        # Contact forces are computed from a whole MjData, which only a persistent batch keeps for each environment.
        self._batch = batch.Batch(model, num_envs, min(threads, num_envs), persistent=task.bodies)
        self._data = self._mujoco.MjData(model)
        self._qpos, self._qvel, self._ctrl = (self._batch.bind(part) for part in ("qpos", "qvel", "ctrl"))
        parts = (self._batch.state, self._qpos, self._qvel)
        self._start_state, self._start_qpos, self._start_qvel = (part[0].copy() for part in parts)
        self._healthy_range = _healthy_range(task, self._options, model.nq + model.nv)
        self._dt = model.opt.timestep * task.frame_skip
        self.action_size = model.nu
        self.action_low, self.action_high = model.actuator_ctrlrange.T.astype(np.float32)
        self.action_space: Space[Any] = Box(self.action_low, self.action_high, dtype=np.float32)
        self.actions: ActionSpace = BoxActions(self.action_size)

        self._memory: dict[str, np.ndarray] = {
            "state": self._batch.state,
            "place": np.zeros((num_envs, task.unseen)),
            "step": np.zeros(num_envs, np.int64),
            "episode": np.zeros(num_envs, np.int64),
            "seed": np.zeros((), np.int64),
        }
        self._fields: dict[str, np.ndarray] = {"qpos": self._qpos, "qvel": self._qvel}
        if task.bodies:
            self._memory["contact_force"] = forces = np.zeros((num_envs, model.nbody, 6))
            self._fields |= {name: self._batch.bind(name) for name in OF_BODIES} | {"cfrc_ext": forces}
            self._mass = model.body_mass[:, None].copy()
        self._observed = _observed(task, self._fields)
        self.observation_size = sum(part.shape[1] for part in self._observed)
        self.observation_space: Space[Any] = Box(-np.inf, np.inf, (self.observation_size,), np.float64)
        self._memory["observation"] = np.zeros((num_envs, self.observation_size), np.float32)
        self._threads = threads
        self._runner: Any = None
        # Poses in which the next episodes begin, the number of the first of them, and the seed they were drawn from.
        self._soon = np.zeros((num_envs, SOON, model.nq + model.nv)), np.zeros(num_envs, np.int64)
        self._soon_of = np.full(num_envs, -1)

    def reset(self, seed: int) -> np.ndarray:
        """(env, obs): all environments start anew; the same seed gives the same episodes ever after."""
        self._memory["seed"][...] = seed
        self._memory["episode"][:] = 0
        self._start(np.arange(self.num_envs))
        return self._remember(self._observe())

    def step(self, action: np.ndarray) -> Step:
        """Moves all environments by `action`, (env, action) in the task's own range, and restarts those that ended.

        As with Gymnasium, an episode that falls on its last step is both terminated and truncated.
        """
        task, memory = self._task, self._memory
        if action.shape != self._ctrl.shape:
            raise UsageError(f"action has shape {action.shape}; expected {self._ctrl.shape}")
        self._ctrl[:] = action
        self._batch.step(nstep=task.frame_skip)
        if task.bodies:
            self._feel_contacts()

        next_obs = self._observe()
        velocity = (self._place() - memory["place"]) / self._dt
        reward, healthy, info = self._outcome(self._fields, velocity, action)
        terminated = ~healthy & self._options.get("terminate_when_unhealthy", False)

        memory["step"] += 1
        truncated = memory["step"] >= self.max_steps
        ended = np.flatnonzero(terminated | truncated)
        obs = next_obs
        if ended.size:
            memory["episode"][ended] += 1
            self._start(ended)
            obs = self._observe()
        return Step(self._remember(obs), next_obs, reward, terminated, truncated, info)

    def run(self, networks: Networks, noise: np.ndarray) -> Steps:
        """Acts and steps in compiled code. Given the same actions, `step` does the same to the last bit."""
        for network, _ in networks:
            network.check(self.observation_size, self.action_size)
        if noise.shape[1:] != self._ctrl.shape:
            raise UsageError(f"noise has shape {noise.shape}; expected (time, {self.num_envs}, {self.action_size})")
        if self._runner is None:
            self._runner = self._make_runner()
        record, row = self._runner.run(self._memory, self._next_starts, networks, noise)
        fields = self._as_fields(record.row)
        if self._task.bodies:
            self._memory["contact_force"][:] = self._as_fields(row)["cfrc_ext"]
        action = native_actions(self.action_space)(np.clip(record.action, -1.0, 1.0))
        reward, _, info = self._outcome(fields, (record.place - record.left) / self._dt, action)
        infos: list[Mapping[str, Any]] = [
            dict(zip(info, values, strict=True)) for values in zip(*info.values(), strict=True)
        ]
        last = self._memory["observation"].copy()
        return Steps(
            record.obs, record.action, record.next_obs, reward, record.terminated, record.truncated, infos, last
        )

    def _outcome(
        self, fields: Mapping[str, np.ndarray], velocity: np.ndarray, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Rewards, health and infos, of one step or of many."""
        task, options = self._task, self._options
        forward = options["forward_reward_weight"] * velocity[..., 0]
        # Gymnasium's Humanoid squares MuJoCo's float64 copy of the action, the others the action they were given.
        squares = np.square(action.astype(np.float64) if task.bodies else action)
        cost = ctrl = options["ctrl_cost_weight"] * squares.sum(axis=-1)
        info = {
            **self._whereabouts(fields, velocity),
            "x_velocity": velocity[..., 0].copy(),
            "reward_forward": forward,
            "reward_ctrl": -ctrl,
        }
        reward, healthy = forward, np.ones(forward.shape, bool)
        if "healthy_reward" in options:
            healthy = self._healthy(fields)
            info["reward_survive"] = healthy * options["healthy_reward"]
            reward = forward + info["reward_survive"]
        if task.bodies:
            forces = fields["cfrc_ext"]
            contact = np.square(forces).reshape(*forces.shape[:-2], -1).sum(axis=-1)
            contact = np.clip(options["contact_cost_weight"] * contact, *options["contact_cost_range"])
            info["reward_contact"] = -contact
            cost = ctrl + contact
        return reward - cost, healthy, info

    def snapshot(self) -> dict[str, np.ndarray]:
        """All that is needed to go on from here, to the last bit."""
        return {name: array.copy() for name, array in self._memory.items()}

    def restore(self, snapshot: dict[str, np.ndarray]) -> np.ndarray:
        """Goes back to a snapshot and returns the observations there."""
        for name, array in self._memory.items():
            shape = snapshot[name].shape if name in snapshot else None
            if shape != array.shape:
                raise UsageError(
                    f"snapshot: '{name}' has shape {shape}; expected {array.shape}. It must come from as many "
                    "environments of the same task, under the same version of MuJoCo"
                )
        for name, array in self._memory.items():
            array[...] = snapshot[name]
        return self._memory["observation"].copy()

    def close(self) -> None:
        """MuJoCo's threads end with the last reference to them."""
        for name in [name for name in vars(self) if name.startswith("_")]:
            delattr(self, name)

    def _start(self, envs: np.ndarray) -> None:
        """A new episode in each of `envs`, drawn from the seed, the environment's number and the episode's."""
        memory = self._memory
        memory["state"][envs] = self._start_state
        for env in envs:
            pose = self._draw_pose(env, memory["episode"][env])
            self._qpos[env], self._qvel[env] = np.split(pose, [self._model.nq])
        self._batch.forward(envs)
        memory["step"][envs] = 0
        if self._task.bodies:
            memory["contact_force"][envs] = 0.0

    def _draw_pose(self, env: int, episode: int) -> np.ndarray:
        """Positions and velocities in which an episode begins."""
        nq, nv, scale = self._model.nq, self._model.nv, self._options["reset_noise_scale"]
        rng = np.random.default_rng((int(self._memory["seed"]), int(env), int(episode)))
        position = rng.uniform(-scale, scale, nq)
        velocity = scale * rng.standard_normal(nv) if self._task.normal_start else rng.uniform(-scale, scale, nv)
        return np.concatenate((self._start_qpos + position, self._start_qvel + velocity))

    def _next_starts(self, envs: range, episode: np.ndarray) -> Any:
        """Where the episodes of `envs` after `episode` begin. What was drawn before and not used is kept."""
        poses, first = self._soon
        for env in envs:
            coming = int(episode[env]) + 1
            known = range(int(first[env]), int(first[env]) + SOON)
            if self._soon_of[env] != self._memory["seed"] or coming not in known:
                poses[env] = [self._draw_pose(env, coming + i) for i in range(SOON)]
                first[env], self._soon_of[env] = coming, self._memory["seed"]
        return self._compiled.Starts(poses, first)

    def _make_runner(self) -> Any:
        task, options, model = self._task, self._options, self._model
        numbers = self._as_fields(np.arange(sum(part[0].size for part in self._fields.values()))[None])
        limit = np.full(self.observation_size, np.inf)
        if task.max_velocity is not None:
            limit[-model.nv :] = task.max_velocity
        rules = self._compiled.Rules(
            frame_skip=task.frame_skip,
            max_steps=self.max_steps,
            contacts=task.bodies,
            observed=np.concatenate(_observed(task, numbers), axis=1)[0],
            limit=limit,
            healthy=self._healthy_range if options.get("terminate_when_unhealthy") else np.zeros((2, 0)),
            mass=self._mass[:, 0].copy() if task.bodies else np.zeros(0),
            centres=int(numbers["xipos"].flat[0]) if task.bodies else 0,
            action_low=self.action_low.copy(),
            action_span=self.action_high - self.action_low,
            unit=bool((self.action_low == -1).all() and (self.action_high == 1).all()),
        )
        sizes = {name: part[0].size for name, part in self._fields.items()}
        return self._compiled.Runner(model, sizes, rules, self.num_envs, self._threads)

    def _as_fields(self, row: np.ndarray) -> dict[str, np.ndarray]:
        """(..., column) -> the fields that lie side by side in a row."""
        fields, start = {}, 0
        for name, part in self._fields.items():
            shape, end = part.shape[1:], start + part[0].size
            fields[name], start = row[..., start:end].reshape(*row.shape[:-1], *shape), end
        return fields

    def _remember(self, obs: np.ndarray) -> np.ndarray:
        """Notes what the next step and a snapshot need of the present, and returns the observations."""
        self._memory["observation"][:] = obs
        self._memory["place"][:] = self._place()
        return obs

    def _observe(self) -> np.ndarray:
        obs = np.concatenate(self._observed, axis=1, dtype=np.float32)
        if self._task.max_velocity is not None:
            velocity = obs[:, -self._model.nv :]
            np.maximum(velocity, -self._task.max_velocity, out=velocity)
            np.minimum(velocity, self._task.max_velocity, out=velocity)
        return obs

    def _place(self) -> np.ndarray:
        """(env, 1 or 2): where the body is, for its velocity."""
        if not self._task.bodies:
            return self._qpos[:, : self._task.unseen]
        return ((self._mass * self._fields["xipos"]).sum(axis=1) / self._mass.sum())[:, :2]

    def _whereabouts(self, fields: Mapping[str, np.ndarray], velocity: np.ndarray) -> dict[str, np.ndarray]:
        """What `info` says about positions."""
        qpos = fields["qpos"]
        info = {"x_position": qpos[..., 0].copy()}
        if self._task.unseen == 2:
            place = qpos[..., :2]
            info |= {"y_position": place[..., 1].copy(), "y_velocity": velocity[..., 1].copy()}
            info["distance_from_origin"] = np.sqrt(np.vecdot(place, place))
        elif "healthy_reward" in self._options:
            info["z_distance_from_origin"] = qpos[..., 1] - self._start_qpos[1]
        if self._task.bodies:
            info |= {f"tendon_{what}": fields[f"ten_{what}"].copy() for what in ("length", "velocity")}
        return info

    def _healthy(self, fields: Mapping[str, np.ndarray]) -> np.ndarray:
        low, high = self._healthy_range
        state = np.concatenate((fields["qpos"], fields["qvel"]), axis=-1)
        return ((low < state) & (state < high)).all(axis=-1)

    def _feel_contacts(self) -> None:
        """Contact forces, which MuJoCo computes on demand, after the last stage of the integrator.

        Sensors cannot replace this loop: they are read at the integrator's first stage.
        """
        for env, forces in enumerate(self._memory["contact_force"]):
            self._batch.get_data(env, self._data)
            self._mujoco.mj_rnePostConstraint(self._model, self._data)
            forces[:] = self._data.cfrc_ext


def _observed(task: Task, fields: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """(env, ...): the parts of an observation."""
    parts = [fields["qpos"][:, task.unseen :], fields["qvel"]]
    if task.bodies:
        # Not of body 0, the sampler, nor of the root's 6 degrees of freedom, which no motor moves.
        inertia, velocity, force = (
            part.reshape(len(part), -1)[:, part.shape[2] :]
            for part in (fields[name] for name in ("cinert", "cvel", "cfrc_ext"))
        )
        parts += [inertia, velocity, fields["qfrc_actuator"][:, 6:], force]
    return parts


def _healthy_range(task: Task, options: Mapping[str, Any], size: int) -> np.ndarray:
    """(2, size): between which ends every coordinate and velocity must lie."""
    ends = np.tile([[-np.inf], [np.inf]], size)
    everywhere = (-np.inf, np.inf)
    ends[:, 2:] = np.transpose([options.get("healthy_state_range", everywhere)])
    for column, name in ((task.height, "healthy_z_range"), (2, "healthy_angle_range")):
        low, high = options.get(name, everywhere)
        ends[:, column] = max(ends[0, column], low), min(ends[1, column], high)
    return ends


def _import(name: str) -> tuple[Any, Any, Any]:
    try:
        return import_module("mujoco"), import_module("mujoco.batch"), import_module("bipars.envs.mujoco_run")
    except ImportError as error:
        raise UsageError(
            f"environment '{name}' needs MuJoCo 4 or newer, and Numba: pip install 'bipars[mujoco]'"
        ) from error


def _load(mujoco: Any, file: str) -> Any:
    """Gymnasium's model. MuJoCo would log a remark on one of them to a file in the working directory."""
    previous = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        return mujoco.MjModel.from_xml_path(str(Path(gymnasium.__file__).parent / "envs/mujoco/assets" / file))
    finally:
        mujoco.set_mju_user_warning(previous)


def paper(task: Task, method: str, learner: str = "ppo") -> Config:
    """Appendix D of the paper, with observations and returns normalised, which it does not mention."""
    weights = WeightConfig(low=-1.0, high=1.0, max_grad_norm=10.0)
    if learner == "ddpg":  # of deterministic policies on these tasks the paper says nothing
        return replace(
            DDPG,
            steps=300_000,
            checkpoint_every=50,
            evaluation_every=10,
            weights=replace(weights, learning_rate=3e-5),
            ddpg=replace(DDPG.ddpg, warmup_steps=10_000, batch_size=256),
        )
    ppo = PPOConfig(
        policy_hidden=(64, 64, 64),
        value_hidden=(64, 64, 64),
        clip=0.2,
        max_grad_norm=1.0,
        normalise_observations=True,
        normalise_returns=True,
    )
    upper = UpperConfig()
    if method == "imgl" and task.simple_imgl:
        ppo, upper = replace(ppo, policy_hidden=(32, 32)), replace(upper, second_order="none")
    if method in ("mgl", "imgl"):
        weights = replace(weights, learning_rate=1e-3)
    return Config(steps=task.steps, ppo=ppo, upper=upper, weights=weights, dpba=LARGE_POTENTIAL)


def make(name: str, num_envs: int, threads: int, /, **options: Any) -> MujocoEnvironment:
    return MujocoEnvironment(name, num_envs, threads, **options)


for name, task in TASKS.items():
    register(
        EnvironmentFamily(
            name,
            {"paper": partial(paper, task)},
            make_host=partial(make, name),
            observations=task.observations,
            term_scales={"torque": task.torque},
        )
    )
