"""Small multilayer perceptrons as pytrees: every leaf is an array, so `jax.grad` needs no filter.

The same formulas serve JAX (training) and NumPy (acting in an environment that is stepped from Python, where
dispatching a small compiled function costs more than computing it): the arrays decide, see `namespace`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from itertools import groupby, pairwise
from typing import Any, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bipars.nets.spaces import ActionSpace, BoxActions, DiscreteActions, MultiDiscreteActions

Initialiser = Callable[[PRNGKeyArray, tuple[int, int]], tuple[Array, Array]]
Tree = TypeVar("Tree")


def static(**options: Any) -> Any:
    """A field of a module that is a setting, not a parameter."""
    return field(metadata={"static": True}, **options)


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(static,))
def module(cls: type[Tree]) -> type[Tree]:
    """A frozen dataclass that is a pytree of its parameters. Its methods cost no more than a plain object's."""
    made = dataclass(frozen=True, eq=False)(cls)
    settings = [f.name for f in fields(made) if f.metadata.get("static")]  # type: ignore[arg-type]
    parameters = [f.name for f in fields(made) if f.name not in settings]  # type: ignore[arg-type]
    return jax.tree_util.register_dataclass(made, parameters, settings)


def namespace(x: Any) -> Any:
    """`numpy` for NumPy arrays, `jax.numpy` for all others."""
    return np if isinstance(x, np.ndarray) else jnp


def to_numpy(tree: Tree) -> Tree:
    """The same pytree with NumPy arrays: its methods then compute in NumPy."""
    return jax.tree.map(np.asarray, tree)


def relu(x: Array) -> Array:
    return np.maximum(x, 0.0) if isinstance(x, np.ndarray) else jax.nn.relu(x)


def clip(x: Array, low: float, high: float) -> Array:
    """Two calls of NumPy's cost a third of its `clip`, on arrays as small as an action."""
    return np.minimum(np.maximum(x, low), high) if isinstance(x, np.ndarray) else jnp.clip(x, low, high)


def one_hot(index: Array, size: int, dtype: Any) -> Array:
    if isinstance(index, np.ndarray):
        return (index[..., None] == np.arange(size)).astype(dtype)
    return jax.nn.one_hot(index, size, dtype=dtype)


def split_choices(x: Array, sizes: Sequence[int]) -> list[Float[Array, "... choice option"]]:
    """The last axis of `x`, sum(sizes) long, cut into choices; neighbours of equal size share an array."""
    parts, start = [], 0
    for size, equal in groupby(sizes):
        count = len(list(equal))
        part = x[..., start : start + count * size]
        parts.append(part.reshape(*x.shape[:-1], count, size))
        start += count * size
    return parts


def one_hots(index: Int[Array, "... choice"], sizes: Sequence[int], dtype: Any) -> Float[Array, "... options"]:
    """Of several choices, side by side: the inverse of choosing in each of `split_choices`."""
    lead = index.shape[:-1]
    parts, start = [], 0
    for size, equal in groupby(sizes):
        count = len(list(equal))
        parts.append(one_hot(index[..., start : start + count], size, dtype).reshape(*lead, count * size))
        start += count
    return namespace(index).concatenate(parts, axis=-1)


def encode_action(actions: ActionSpace, action: Array, dtype: Any) -> Float[Array, "... width"]:
    """An action as a network is told of it: clipped numbers, or one-hot."""
    match actions:
        case BoxActions():
            return namespace(action).clip(action, -1.0, 1.0)
        case DiscreteActions():
            return one_hot(action, actions.n, dtype)
        case MultiDiscreteActions():
            return one_hots(action, actions.sizes, dtype)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"relu": relu, "tanh": lambda x: namespace(x).tanh(x)}


@module
class Linear:
    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"]

    def __call__(self, x: Float[Array, "... inputs"]) -> Float[Array, "... outputs"]:
        return namespace(x).dot(x, self.weight) + self.bias  # NumPy's `@` takes longer on small arrays

    def columns(self, x: Float[Array, "inputs sample"]) -> Float[Array, "outputs sample"]:
        """The same with one column per sample; the bias may have one, too."""
        return self.weight.T @ x + (self.bias[:, None] if self.bias.ndim == 1 else self.bias)


@module
class MLP:
    layers: tuple[Linear, ...]
    activation: str = static()

    def __call__(self, x: Float[Array, "... inputs"]) -> Float[Array, "... outputs"]:
        if x.ndim == 2 and namespace(x) is jnp:
            return self.layers[-1].columns(self.inputs(x)[-1]).T
        for layer in self.layers[:-1]:
            x = ACTIVATIONS[self.activation](layer(x))
        return self.layers[-1](x)

    def inputs(self, x: Float[Array, "sample inputs"]) -> list[Float[Array, "inputs sample"]]:
        """What each layer is given, one column per sample: XLA multiplies matrices that lie so in less time.

        Most of all those in the gradient of a weight, which run along the samples.
        """
        given = [jax.lax.optimization_barrier(x.T)]  # else XLA would undo it
        for layer in self.layers[:-1]:
            given.append(ACTIVATIONS[self.activation](layer.columns(given[-1])))
        return given


def glorot(key: PRNGKeyArray, shape: tuple[int, int]) -> tuple[Array, Array]:
    """Glorot-uniform weights, zero biases."""
    return jax.nn.initializers.glorot_uniform()(key, shape), jnp.zeros(shape[1])


def orthogonal(scale: float) -> Initialiser:
    """Orthogonal weights times `scale`, zero biases."""

    def init(key: PRNGKeyArray, shape: tuple[int, int]) -> tuple[Array, Array]:
        return jax.nn.initializers.orthogonal(scale)(key, shape), jnp.zeros(shape[1])

    return init


def uniform(scale: float) -> Initialiser:
    """Weights and biases uniform in [-scale, scale]."""

    def init(key: PRNGKeyArray, shape: tuple[int, int]) -> tuple[Array, Array]:
        weight_key, bias_key = jax.random.split(key)
        return (
            jax.random.uniform(weight_key, shape, minval=-scale, maxval=scale),
            jax.random.uniform(bias_key, shape[1:], minval=-scale, maxval=scale),
        )

    return init


def make_mlp(
    key: PRNGKeyArray,
    sizes: Sequence[int],
    activation: str,
    hidden: Initialiser = glorot,
    output: Initialiser = glorot,
) -> MLP:
    """A network with layers `sizes[0] -> sizes[1] -> ... -> sizes[-1]`."""
    shapes = list(pairwise(sizes))
    keys = jax.random.split(key, len(shapes))
    inits = [hidden] * (len(shapes) - 1) + [output]
    layers = tuple(Linear(*init(k, shape)) for init, k, shape in zip(inits, keys, shapes, strict=True))
    return MLP(layers, activation)


def ravel(tree: object) -> Float[Array, " parameters"]:
    """All parameters of a pytree as one vector, in leaf order."""
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def count_parameters(tree: object) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))
