"""How far a predicted structure is from the true one: one concept a file.

All metrics are computed on the CPU in float64, so that they depend on the positions alone.
"""

from scalefold.evaluate.metrics.comparison import Comparison
from scalefold.evaluate.metrics.lddt import Lddt, lddt_all_atom, lddt_ca
from scalefold.evaluate.metrics.naming import with_best_naming
from scalefold.evaluate.metrics.stereochemistry import Stereochemistry, stereochemistry
from scalefold.evaluate.metrics.superposed import SuperposedScores, rmsd_ca, superposed_scores

__all__ = [
    "Comparison",
    "Lddt",
    "Stereochemistry",
    "SuperposedScores",
    "lddt_all_atom",
    "lddt_ca",
    "rmsd_ca",
    "stereochemistry",
    "superposed_scores",
    "with_best_naming",
]
