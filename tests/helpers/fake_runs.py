"""Run directories with made-up figures: what a report says is tested apart from what training gives."""

import json
from dataclasses import replace

import jax
import numpy as np

from bipars.methods import METHODS
from bipars.nets.mlp import to_numpy
from bipars.nets.running import RunningMoments
from bipars.nets.spaces import BoxActions, DiscreteActions, Spaces
from bipars.nets.weights import make_weights, with_unit
from bipars.results.panels import collect
from bipars.results.verdict import judgements
from bipars.rollout.stats import Visited
from bipars.runs.directory import WITHOUT_CHECKSUM, RunDirectory, seed_directory
from bipars.runs.files import write_json
from bipars.runs.metrics import encode_row
from bipars.runs.recording import Episode
from bipars.runs.snapshots import Content, encode_snapshot, write_snapshot
from bipars.settings.config import Config
from bipars.settings.resolved import ResolvedConfig, ResolvedDDPG, ResolvedUpper, ResolvedWeights

ROUNDS = 12


def fake_cell(root, method, ends, weight=None, states=None, terms=("push",), config=None, share=0.5, finish=True):
    """One run per entry of `ends`, the return at its end; weights move from 1 to `weight`, `states` is their spread."""
    base = config or Config(env="cartpole", steps=ROUNDS * 20_000)
    for seed, end in enumerate(ends):
        own = replace(base, method=method, terms=terms, seed=seed)
        fake_seed(seed_directory(root, seed), own, end, weight, states, share, finish)
    return root


def as_resolved(config):
    """With something in every place that is left open; nothing of it is looked at."""
    if isinstance(config, ResolvedConfig):
        return replace(config, learns_weights=METHODS[config.method].learns_weights)

    def filled(kind, settings):
        return kind(**{name: value for name, value in vars(settings).items() if value not in (None, "auto")})

    method = METHODS[config.method]
    parts = {
        "weights": filled(ResolvedWeights, config.weights),
        "upper": filled(ResolvedUpper, config.upper),
        "ddpg": filled(ResolvedDDPG, config.ddpg),
        "learner": method.learner,
        "learns_weights": method.learns_weights,
    }
    return ResolvedConfig(**vars(config) | parts)


def fake_seed(path, config, end, weight=None, states=None, share=0.5, finish=True):
    """One run, its directory made before or now."""
    run, terms = RunDirectory.create(path, as_resolved(config)), config.terms
    without_checksum(run)
    rows = [_row(i + 1, end, terms, weight, states, share) for i in range(ROUNDS if finish else ROUNDS // 2)]
    run.metrics_file.write_bytes(b"".join(map(encode_row, rows)))
    if finish:
        last = {"steps": rows[-1]["step"], "evaluation_return": end, "evaluation_length": 100 + 100 * end}
        write_json(run.result_file, last | {"weights": {t: rows[-1][f"weight/{t}"] for t in terms}})


def without_checksum(run):
    """In the format before checksums, so that a test may change what a file says."""
    about = json.loads(run.config_file.read_text())
    about.pop("checksum", None)
    write_json(run.config_file, about | {"format": WITHOUT_CHECKSUM})


def _row(round, end, terms, weight, states, share):
    part = min(1.0, round / (ROUNDS / 2))
    value = -1.0 + (end + 1.0) * part
    row = {
        "round": round,
        "step": 20_000 * round,
        "evaluation_return": value,
        "evaluation_length": 100 + 100 * value,
        "evaluation_action_size": 0.0,
        "policy_gradient_norm": 0.1,
    }
    if weight is not None:
        row |= {"weight_gradient_norm": 0.2, "weight_gradient_snr": 0.5}
    for k, term in enumerate(terms):
        now = 1 + (weight - 1 + k) * part if weight is not None else 0.0
        spread = np.array(states if states is not None else (now, now)) * (part if states is not None else 1)
        row |= {f"weight/{term}": now, f"weight_p10/{term}": spread[0], f"weight_p50/{term}": now}
        row |= {f"weight_p90/{term}": spread[1], f"share/{term}": share}
    return json.loads(json.dumps(row))


def add_evidence(root, true=6.0, leader=1, lead_t=0.0, itself=None, **terms):
    """Rows of evidence for every run below: t of the true gradient and of each term, one number or one per update, what
    the control group showed and, by term, how clear the term's own gradient was."""
    for file in sorted(root.rglob("metrics.jsonl")):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        named = {"true_gradient_t": true} | {f"agreement_t/{name}": t for name, t in terms.items()}
        named |= {f"term_gradient_t/{name}": t for name, t in (itself or {}).items()}
        for i, row in enumerate(rows):
            row |= {key: float(np.broadcast_to(t, len(rows))[i]) for key, t in named.items()}
            row |= {"leader": leader, "lead_t": lead_t}
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def add_transitions(root, terms):
    """A snapshot for every run below, with these values of the terms in the transitions visited."""
    count = len(terms)
    for file in sorted(root.rglob("metrics.jsonl")):
        run = RunDirectory(file.parent)
        obs, action = np.zeros((count, 4), np.float32), np.zeros(count, int)
        weights = make_weights(jax.random.key(0), ResolvedWeights(), Spaces(4, DiscreteActions(2)), terms.shape[1])
        z, nothing = np.ones_like(terms), np.zeros(1, np.float32)
        episode = Episode(nothing, terms[:1], terms[:1], nothing)
        write_snapshot(run, 1, encode_snapshot(Content(weights, None, Visited(obs, action, terms), z, episode)))


def fake_snapshots(
    run,
    form="per-action",
    actions=2,
    terms=1,
    steps=30,
    normalise=False,
    unit=None,
    simplex=False,
    evidence=False,
    reach=1.0,
):
    """Ten snapshots of a random weight function, random states, and an episode; actions are asked for up to `reach`."""
    rng = np.random.default_rng(run.config.seed)
    discrete = form != "state-action"
    spaces = Spaces(4, DiscreteActions(actions) if discrete else BoxActions(1))
    moments = (
        RunningMoments(np.full(4, 0.5, np.float32), np.full(4, 4.0, np.float32), np.float32(9)) if normalise else None
    )
    for i in range(1, 11):
        config = ResolvedWeights(form=form, learning_rate=1e-3, in_units=unit is not None, simplex=simplex)
        config = replace(config, by_evidence=evidence)
        weights = make_weights(jax.random.key(100 * run.config.seed + i), config, spaces, terms)
        weights = jax.tree.map(lambda x, i=i: x * (1 + 20 * i), weights)
        weights = weights if unit is None else with_unit(weights, np.full(terms, unit, np.float32))
        obs = rng.normal(size=(300, 4)).astype(np.float32)
        action = (
            rng.integers(actions, size=300) if discrete else rng.uniform(-reach, reach, (300, 1)).astype(np.float32)
        )
        f = rng.normal(size=(300, terms)).astype(np.float32)
        seen = obs if moments is None else moments.normalise(obs)
        z = np.asarray(to_numpy(weights)(seen, action), np.float32)
        parts = rng.normal(size=(3, steps, terms)).astype(np.float32)
        episode = Episode(-np.ones(steps, np.float32), parts[0], parts[1], np.zeros(steps, np.float32))
        write_snapshot(run, i, encode_snapshot(Content(weights, moments, Visited(obs, action, f), z, episode)))


GOOD, MIDDLE, BAD = [-0.02, 0.0, -0.01, 0.0], [-0.5, -0.45, -0.55, -0.4], [-1.0, -0.99, -1.0, -0.98]


def task(root, learned, naive, plain, **weights):
    """What is said of a learner that is compared with naive shaping and none."""
    fake_cell(root / "mgl", "mgl", learned, **weights)
    fake_cell(root / "ns", "ns", naive, weight=1.0)
    fake_cell(root / "ppo", "ppo", plain, terms=())
    return judgements(collect(root).panels[0])[0]
