"""Gradients of one number per sample, without the n numbers that each of these gradients has."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bipars.nets.mlp import MLP, Linear, module, static


@module
class PerSampleGradients:
    """What a policy or a weight function says of every sample, and how that moves with its parameters.

    For the weight of a layer, the gradient is the outer product of what the layer was given and what came back to it.
    """

    value: Float[Array, " sample"]
    given: list[Float[Array, "inputs sample"]]
    output_gradients: list[Float[Array, "outputs sample"]]
    others: Any
    """Of the parameters outside the network, with one row per sample, in an object without network."""
    activation: str = static()

    @classmethod
    def of(
        cls, parameters: Any, says: Callable[[Any], Float[Array, " sample"]], inputs: Float[Array, "sample inputs"]
    ) -> "PerSampleGradients":
        """`says` asks the parameters' network, if they have one, once, of all `inputs` at a time."""
        net, count = getattr(parameters, "net", MLP((), "")), len(inputs)
        # With a bias of its own for every sample, the gradient of a layer's bias is what comes back to it from each.
        layers = [replace(x, bias=jnp.broadcast_to(x.bias[:, None], (x.bias.size, count))) for x in net.layers]
        others = jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), _without_network(parameters))

        def total(parameters: Any) -> tuple[Float[Array, ""], Float[Array, " sample"]]:
            value = says(parameters)
            return jnp.sum(value), value

        slopes, value = jax.grad(total, has_aux=True)(_with_network(others, MLP(tuple(layers), net.activation)))
        output_gradients = [layer.bias for layer in slopes.net.layers] if layers else []
        given = net.inputs(inputs) if layers else []
        return cls(value, given, output_gradients, _without_network(slopes), net.activation)

    def sums(self, factors: Float[Array, "k sample"]) -> Any:
        """sum_i c_i grad_i for each row c of `factors`, as an object whose leaves have a leading axis k.

        `jax.vjp` would go back through the network for each row. What comes back to a layer is the same but for c_i.
        """

        def of_layer(given: Float[Array, "inputs sample"], output_gradients: Float[Array, "outputs sample"]) -> Linear:
            stacked = (factors[:, None] * output_gradients).reshape(-1, factors.shape[1])
            weight = (given @ stacked.T).reshape(len(given), len(factors), -1)
            return Linear(jnp.swapaxes(weight, 0, 1), factors @ output_gradients.T)

        layers = tuple(map(of_layer, self.given, self.output_gradients))
        others = jax.tree.map(lambda x: jnp.tensordot(factors, x, 1), self.others)
        return _with_network(others, MLP(layers, self.activation))

    def along(self, v: Any) -> Float[Array, " sample"]:
        """v . grad_i. `jax.jvp` would also carry v from layer to layer."""
        others = jax.tree.map(jnp.dot, self.others, _without_network(v))
        layers = zip(v.net.layers if self.given else (), self.given, self.output_gradients, strict=True)
        parts = [jnp.sum(layer.columns(given) * output_gradients, axis=0) for layer, given, output_gradients in layers]
        return jax.tree.reduce(jnp.add, (parts, others))


def _without_network(parameters: Any) -> Any:
    return replace(parameters, net=()) if hasattr(parameters, "net") else parameters


def _with_network(others: Any, net: MLP) -> Any:
    return replace(others, net=net) if hasattr(others, "net") else others
