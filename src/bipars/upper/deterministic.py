"""The upper level of appendix C: how the true return of a deterministic policy moves with phi.

By the deterministic policy gradient theorem the true return climbs with `mean_i Q(s_i, mu(s_i))` (Q held fixed), and
the policy itself climbs `mean_i Q~(s_i, mu_theta(s_i), z_phi(s_i))`: theta' depends on phi through the last argument.
"""

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from bipars.lower.base import After, LowerStep
from bipars.lower.ddpg import DDPGLearner, ReplayData, ValuedStates
from bipars.nets.deterministic import DeterministicPolicy, ModifiedCritic
from bipars.nets.mlp import count_parameters, ravel
from bipars.nets.policies import HyperPolicy
from bipars.nets.weights import WeightFunction, with_unit
from bipars.upper.base import Memoryless, Updated, UpperLevel, hessian_product, unravel_like

Form = Literal["exact", "constant-critic", "none"]


def penalise_size(
    v: DeterministicPolicy, step: LowerStep, weights: WeightFunction, penalty: float
) -> DeterministicPolicy:
    """v - kappa g+, with g+ what sum_k z_k B_k adds to the gradient that theta climbed.

    phi then climbs <v, g+> - kappa/2 |g+|^2, hence towards g+ = v / kappa. Both are in units of the true reward, so
    kappa needs no other scale. A term whose gradients are large and have nothing to do with v, at random or because the
    policy is at rest where the term wants it, loses its weight.
    """
    if not penalty:
        return v
    (obs, critic), z = step.samples, weights.at_state(step.samples.obs)
    assert isinstance(critic, ModifiedCritic)
    added = jax.grad(lambda theta: critic.weighted(obs, theta(obs), z).mean())(step.policy)
    return jax.tree.map(lambda a, b: a - penalty * b, v, added)


def slope_along(
    weights: WeightFunction,
    samples: ValuedStates,
    action: Float[Array, "sample action"],
    w: Float[Array, "sample action"],
) -> Float[Array, ""]:
    """mean_i w_i . grad_a Q~(s_i, a_i, z_phi(s_i)), whose derivative in phi is the mixed derivative of equation C.6."""
    z = weights.at_state(samples.obs)
    return jax.jvp(lambda a: samples.critic(samples.obs, a, z), (action,), (w,))[1].mean()


@dataclass(frozen=True)
class DeterministicMapping(Memoryless):
    """EM: mu(s, z_phi(s)), hence the chain rule through the policy's input (equation C.3)."""

    needs_jacobian: bool = False

    def update(self, h: Any, step: LowerStep, after: After, weights: WeightFunction) -> tuple[WeightFunction, Any]:
        samples = after.samples

        def true_return(phi: WeightFunction) -> Float[Array, ""]:
            return samples.critic(samples.obs, HyperPolicy(after.policy, phi).mode(samples.obs)).mean()

        return jax.grad(true_return)(weights), h


@dataclass(frozen=True)
class DeterministicMetaGradient(Memoryless):
    """MGL: v^T d theta'/d phi per unit of alpha, through the last step alone (equation C.6).

    The n x m matrix is never built: `w_i = (d mu(s_i)/d theta) v` for all samples is one Jacobian-vector product.
    """

    size_penalty: float = 0.0
    needs_jacobian: bool = False

    def update(self, h: Any, step: LowerStep, after: After, weights: WeightFunction) -> tuple[WeightFunction, Any]:
        v = penalise_size(after.gradient, step, weights, self.size_penalty)
        action, w = jax.jvp(lambda theta: theta(step.samples.obs), (step.policy,), (v,))
        return jax.grad(slope_along)(weights, step.samples, action, w), h


def direct_term(step: LowerStep, weights: WeightFunction) -> Float[Array, "theta phi"]:
    """M: mean_i (d mu_i/d theta)^T (d/dz grad_a Q~_i) (dz_i/dphi), the part of d theta'/d phi that MGL has."""
    obs, critic = step.samples

    def mixed(s: Array, a: Array, z: Array) -> Float[Array, "action term"]:
        return jax.jacfwd(jax.grad(critic, argnums=1), argnums=2)(s, a, z)

    mu = _jacobians(lambda theta, s: theta(s), step.policy, obs)
    z = _jacobians(lambda phi, s: phi.at_state(s), weights, obs)
    cross = jax.vmap(mixed)(obs, step.policy(obs), weights.at_state(obs))
    left = jnp.einsum("iat,iak->ikt", mu, cross).reshape(-1, mu.shape[-1])
    return left.T @ z.reshape(-1, z.shape[-1]) / obs.shape[0]


def _jacobians(
    function: Any, parameters: Any, obs: Float[Array, "sample obs"]
) -> Float[Array, "sample output parameter"]:
    """Each output of each sample, differentiated by every parameter."""
    found = jax.vmap(jax.jacrev(function), (None, 0))(parameters, obs)
    return jnp.concatenate([leaf.reshape(*leaf.shape[:2], -1) for leaf in jax.tree.leaves(found)], axis=-1)


def second_order_term(
    step: LowerStep, weights: WeightFunction, h: Float[Array, "theta phi"]
) -> Float[Array, "theta phi"]:
    """H h with H the Hessian in theta of mean_i Q~(s_i, mu_theta(s_i), z_i).

    Q~ enters H by its slope and curvature in the action alone, so its second-order expansion around mu_theta(s_i) has
    the same H. Differentiating that instead leaves the critic's network out of all directions but the first.
    """
    obs, critic = step.samples
    z = weights.at_state(obs)
    base = step.policy(obs)
    slope = jax.vmap(jax.grad(critic, argnums=1))(obs, base, z)
    curvature = jax.vmap(jax.hessian(critic, argnums=1))(obs, base, z)

    def expansion(theta: DeterministicPolicy) -> Float[Array, ""]:
        move = theta(obs) - base
        second = jnp.einsum("ia,iab,ib->i", move, curvature, move)
        return jnp.mean(jnp.sum(slope * move, axis=-1) + 0.5 * second)

    return hessian_product(expansion, step.policy, h)


@dataclass(frozen=True)
class DeterministicIncremental:
    """IMGL: h <- (I + alpha H) h + alpha M, and v^T h (equations C.8 to C.10).

    `exact` is all of it; `none` drops H. `constant-critic` drops M, and with it h would never leave 0, where it starts:
    here h starts every round with one M, which the round's other steps carry on.
    """

    learning_rate: float
    form: Form
    size_penalty: float = 0.0
    needs_jacobian: bool = False

    def init(self, policy: DeterministicPolicy, weights: WeightFunction, minibatch: None) -> Float[Array, "theta phi"]:
        return jnp.zeros((count_parameters(policy), count_parameters(weights)))

    def follow(
        self, h: Float[Array, "theta phi"], step: LowerStep, weights: WeightFunction
    ) -> Float[Array, "theta phi"]:
        match self.form:
            case "exact":
                change = second_order_term(step, weights, h) + direct_term(step, weights)
            case "none":
                change = direct_term(step, weights)
            case "constant-critic":
                change = jax.lax.cond(
                    h.any(), lambda: second_order_term(step, weights, h), lambda: direct_term(step, weights)
                )
        return h + self.learning_rate * change

    def update(
        self, h: Float[Array, "theta phi"], step: LowerStep, after: After, weights: WeightFunction
    ) -> tuple[WeightFunction, Float[Array, "theta phi"]]:
        h = self.follow(h, step, weights)
        v = penalise_size(after.gradient, step, weights, self.size_penalty)
        return unravel_like(weights, ravel(v) @ h), h


@dataclass(frozen=True, eq=False)
class MeasuredUnits:
    """An upper level whose weights move in the units that the lower level has measured.

    Weights from elsewhere keep the unit that they were learned with.
    """

    upper: UpperLevel

    def init(self, weights: WeightFunction, learner: DDPGLearner) -> Any:
        return self.upper.init(weights, learner)

    def update(self, state: Any, learner: DDPGLearner, data: ReplayData, key: PRNGKeyArray) -> Updated:
        return self.upper.update(state._replace(weights=with_unit(state.weights, data.unit)), learner, data, key)
