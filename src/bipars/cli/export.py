"""The command `export`: learned weights for another framework."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bipars.cli.consent import with_consent
from bipars.cli.report import OfRuns
from bipars.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Export(OfRuns):
    """Take the learned weights to another framework: as numbers, as its configuration, or as a network.

    bipars export runs/harmful --to schedule --out weights.json
    """

    to: Literal["scalars", "schedule", "isaaclab", "mjlab", "playground", "onnx"] = "scalars"
    """scalars: one number per term (JSON); schedule: numbers over training (JSON); isaaclab, mjlab, playground: Python
    that sets the weights there; onnx: the weight function itself, of one run."""
    out: Path | None = None
    """File to write; without it, text is printed."""
    allow_imports: bool = False
    """Import the code that a run's file names, such as import:module.function, for onnx, without asking."""

    def run(self) -> int:
        if self.to == "onnx":
            written = with_consent(self.allow_imports, self._network)
        else:
            from bipars.results.panels import collect
            from bipars.results.scalars import FORMATS, read_scalars, the_learner
            from bipars.runs.files import write_atomically

            text = FORMATS[self.to](read_scalars(the_learner(collect(self.directory)))) + "\n"
            if self.out is None:
                print(text, end="")
                return 0
            write_atomically(self.out, text.encode())
            written = self.out
        print(f"written: {written}")
        return 0

    def _network(self) -> Path:
        from bipars.agent import BiPaRS
        from bipars.export.onnx import save_onnx

        if self.out is None:
            raise UsageError("an ONNX graph is not text: say where it goes, such as --out weights.onnx")
        if not (self.directory / "config.json").exists():
            raise UsageError(
                f"{self.directory} is neither a run nor a saved agent; a graph is made from one run, such as its "
                "seed-0000"
            )
        agent = BiPaRS.load(self.directory)
        return save_onnx(agent.weight_function(), self.out)
