"""AlphaFold2's monomer model, one file an algorithm group; `AlphaFold` is the whole of it."""

from scalefold.model.alphafold import AlphaFold
from scalefold.model.assembly import Assembly
from scalefold.model.contract import Outputs, Previous, Structure, Templates

__all__ = ["AlphaFold", "Assembly", "Outputs", "Previous", "Structure", "Templates"]
