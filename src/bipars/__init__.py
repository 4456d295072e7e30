"""bipars learns how much each hand-written reward term should count, and where, while it trains the agent."""

from typing import TYPE_CHECKING, Any

from bipars import envs

if TYPE_CHECKING:
    from bipars.agent import BiPaRS, compare
    from bipars.errors import BiparsError
    from bipars.export import LearnedWeightFunction, shaped_env
    from bipars.integrations.callbacks import Callback, TensorBoard
    from bipars.integrations.trackers import MLflow, WandB
    from bipars.methods import Method
    from bipars.report.report import Report
    from bipars.results.table import load_results
    from bipars.settings.config import (
        Config,
        DDPGConfig,
        DDPGUpperConfig,
        DPBAConfig,
        PPOConfig,
        UpperConfig,
        WeightConfig,
    )
    from bipars.shaping.given import Potential
    from bipars.terms.term import RewardTerm
    from bipars.wrappers.term_logger import TermLogger

_HOMES = {
    "BiPaRS": "agent",
    "BiparsError": "errors",
    "Callback": "integrations.callbacks",
    "Config": "settings.config",
    "DDPGConfig": "settings.config",
    "DDPGUpperConfig": "settings.config",
    "DPBAConfig": "settings.config",
    "LearnedWeightFunction": "export",
    "MLflow": "integrations.trackers",
    "Method": "methods",
    "PPOConfig": "settings.config",
    "Potential": "shaping.given",
    "RewardTerm": "terms.term",
    "TensorBoard": "integrations.callbacks",
    "TermLogger": "wrappers.term_logger",
    "UpperConfig": "settings.config",
    "WandB": "integrations.trackers",
    "WeightConfig": "settings.config",
    "Report": "report.report",
    "compare": "agent",
    "load_results": "results.table",
    "shaped_env": "export",
}

__version__ = "0.2.0"
__all__ = [
    "BiPaRS", "BiparsError", "Callback", "Config", "DDPGConfig", "DDPGUpperConfig", "DPBAConfig",
    "LearnedWeightFunction", "MLflow", "Method", "PPOConfig", "Potential", "Report", "RewardTerm", "TensorBoard",
    "TermLogger", "UpperConfig", "WandB", "WeightConfig", "__version__", "compare", "envs", "load_results",
    "shaped_env",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Loads JAX only when something that needs it is asked for, so that `bipars --help` answers at once."""
    if name not in _HOMES:
        raise AttributeError(f"module 'bipars' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(f"bipars.{_HOMES[name]}"), name)
