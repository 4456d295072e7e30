"""A weight function as an ONNX graph: flattened observations and the environment's own actions in, weights out."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces import Box

from bipars.envs.spaces import observation_size
from bipars.errors import UsageError
from bipars.export.weights import LearnedWeightFunction
from bipars.nets.mlp import MLP
from bipars.nets.running import LIMIT
from bipars.nets.spaces import ActionSpace, BoxActions, DiscreteActions
from bipars.nets.weights import (
    DeviatingWeights,
    PerActionWeights,
    Range,
    ScalarWeights,
    Simplex,
    StateActionWeights,
    StateWeights,
)
from bipars.runs.files import write_atomically

OPSET = 18
OBS, ACTION, WEIGHTS = "obs", "action", "weights"


def save_onnx(function: LearnedWeightFunction, path: Path) -> Path:
    """`obs` is (batch, numbers), Dict observations flattened in the order of their keys; `action` (batch, numbers), or
    (batch,) where it is one choice; `weights` (batch, terms), whose names are in the metadata."""
    try:
        import onnx
        from onnx import helper
    except ImportError:
        raise UsageError("an ONNX graph needs the package onnx: pip install 'bipars[onnx]'") from None
    discrete = not isinstance(function.action_space, Box)
    whole, real = onnx.TensorProto.INT64, onnx.TensorProto.FLOAT
    chosen = [] if isinstance(function.action_space, spaces.Discrete) else [int(np.prod(function.action_space.shape))]  # type: ignore[arg-type]
    inputs = [
        helper.make_tensor_value_info(OBS, real, ["batch", observation_size(function.observation_space)]),
        helper.make_tensor_value_info(ACTION, whole if discrete else real, ["batch", *chosen]),
    ]
    outputs = [helper.make_tensor_value_info(WEIGHTS, real, ["batch", len(function.terms)])]
    graph = Graph(helper, onnx.numpy_helper)
    graph.add("Identity", graph.weight_function(function), output=WEIGHTS)
    made = helper.make_graph(graph.nodes, "weight function", inputs, outputs, graph.constants)
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(made, opset_imports=[opset], producer_name="bipars", ir_version=9)
    helper.set_model_props(model, {"terms": json.dumps(function.terms)})
    onnx.checker.check_model(model, full_check=True)
    write_atomically(path, model.SerializeToString())
    return path


class Graph:
    """Nodes and constants, named in the order in which they come. Every method gives the name of its result."""

    def __init__(self, helper: Any, arrays: Any) -> None:
        self.helper, self.arrays = helper, arrays
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, operation: str, *inputs: Any, output: str | None = None, **attributes: Any) -> str:
        """Of names, or of arrays, which become constants."""
        names = [x if isinstance(x, str) else self.constant(np.asarray(x)) for x in inputs]
        output = output or f"{operation.lower()}_{len(self.nodes)}"
        self.nodes.append(self.helper.make_node(operation, names, [output], **attributes))
        return output

    def constant(self, value: np.ndarray) -> str:
        name = f"constant_{len(self.constants)}"
        kept = value.astype(np.float32 if value.dtype.kind == "f" else np.int64)
        self.constants.append(self.arrays.from_array(kept, name))
        return name

    def weight_function(self, function: LearnedWeightFunction) -> str:
        obs = OBS
        if function.moments is not None:
            scale = function.moments.scale
            obs = self.clip(self.add("Div", self.add("Sub", obs, scale.mean), scale.std), -LIMIT, LIMIT)
        return self.weights(function.weights, obs, self.policy_action(function.action_space))

    def weights(self, z: Any, obs: str, action: str) -> str:
        match z:
            case ScalarWeights():
                batch = self.add("Shape", obs, start=0, end=1)
                shape = self.add("Concat", batch, np.array([z.value.size]), axis=0)
                return self.add("Expand", self.range(z.range, self.constant(np.asarray(z.value)[None])), shape)
            case StateWeights():
                return self.range(z.range, self.mlp(z.net, obs))
            case StateActionWeights():
                inputs = self.add("Concat", obs, self.encode(z.actions, action), axis=1)
                return self.range(z.range, self.mlp(z.net, inputs))
            case PerActionWeights():
                every = self.range(z.range, self.mlp(z.net, obs))
                by_action = self.add("Reshape", every, np.array([0, z.num_actions, -1]))
                chosen = self.add("Unsqueeze", self.one_hot(action, z.num_actions), np.array([2]))
                return self.add("ReduceSum", self.add("Mul", by_action, chosen), np.array([1]), keepdims=0)
            case DeviatingWeights():
                deviation = self.add("Mul", self.weights(z.deviation, obs, action), z.unit)
                return self.range(z.range, self.add("Add", deviation, z.base))
        raise AssertionError(z)

    def range(self, span: Range | Simplex, output: str) -> str:
        if isinstance(span, Simplex):
            each = self.add("Reshape", output, np.array([0, -1, span.num_terms]))
            return self.add("Reshape", self.add("Softmax", each, axis=-1), self.add("Shape", output))
        if span.unit is not None:
            raise UsageError("weights of the deterministic methods are in measured units: export them as scalars")
        raw = self.add("Add", output, np.float32(span.initial))
        return raw if span.low is None and span.high is None else self.clip(raw, span.low, span.high)

    def clip(self, x: str, low: float | None, high: float | None) -> str:
        bounds = ["" if bound is None else np.float32(bound) for bound in (low, high)]
        return self.add("Clip", x, *bounds)

    def mlp(self, net: MLP, x: str) -> str:
        for i, layer in enumerate(net.layers):
            x = self.add("Gemm", x, layer.weight, layer.bias)
            if i < len(net.layers) - 1:
                x = self.add(net.activation.capitalize(), x)
        return x

    def policy_action(self, space: Any) -> str:
        """What the policy says for an action of the environment: in [-1, 1], or counted from 0."""
        if isinstance(space, Box):
            low, high = space.low.reshape(-1), space.high.reshape(-1)
            if (low == -1).all() and (high == 1).all():
                return ACTION
            return self.add("Sub", self.add("Mul", self.add("Sub", ACTION, low), 2.0 / (high - low)), np.float32(1.0))
        start = getattr(space, "start", 0)
        return self.add("Sub", ACTION, np.asarray(start).reshape(-1) if np.ndim(start) else np.int64(start))

    def encode(self, actions: ActionSpace, action: str) -> str:
        """An action as the network is told of it."""
        if isinstance(actions, BoxActions):
            return self.clip(action, -1.0, 1.0)
        if isinstance(actions, DiscreteActions):
            return self.one_hot(action, actions.n)
        columns = [self.add("Gather", action, np.int64(i), axis=1) for i in range(len(actions.sizes))]
        each = [self.one_hot(column, size) for column, size in zip(columns, actions.sizes, strict=True)]
        return self.add("Concat", *each, axis=1)

    def one_hot(self, action: str, size: int) -> str:
        return self.add("OneHot", action, np.int64(size), np.array([0.0, 1.0], np.float32))
