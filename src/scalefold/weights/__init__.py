"""Weights of other codes, in and out.

ScaleFold's parameter names are those of OpenFold's current version, so exchange with OpenFold is a
check of names and shapes; AlphaFold's and MLPerf's names are translated by tables.
"""

from scalefold.weights.convert import export_weights, guess_format, import_weights
from scalefold.weights.matching import State, check_state

__all__ = ["State", "check_state", "export_weights", "guess_format", "import_weights"]
