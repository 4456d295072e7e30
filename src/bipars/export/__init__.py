"""What users take to another library: the learned weights as a callable, a file, an environment or an ONNX graph."""

from bipars.export.numbers import shaped_env
from bipars.export.weights import LearnedWeightFunction, ShapedEnv, shape

__all__ = ["LearnedWeightFunction", "ShapedEnv", "shape", "shaped_env"]
