"""Weights of the MLPerf HPC reference (NVIDIA's OpenFold)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from scalefold.weights.matching import State
from scalefold.weights.openfold import FIRST_VERSION, find_state, read_torch, rename, strip_prefixes

NAMES: Final = (
    (re.compile(r"^evoformer_stack\."), "evoformer."),
    (re.compile(r"^auxiliary_heads\."), "aux_heads."),
    (re.compile(r"^template_pointwise_attention\."), "template_pointwise_att."),
    (re.compile(r"^(evoformer\.blocks\.\d+\.msa_att_col\.)(?!_)"), r"\1_msa_att."),
    (re.compile(r"^(structure_module\.transition\.)(linear_\d)\."), r"\1layers.0.\2."),
    *FIRST_VERSION,
)
"""From MLPerf's names to ours. The rest is OpenFold's first version, from which MLPerf branched."""

_CONTAINER: Final = "alphafold_state_dict"
_AVERAGE_COUNT: Final = "averaged_model.n_averaged"
_AVERAGE: Final = "averaged_model."


def read_mlperf(path: Path) -> State:
    """Read ``resumable_checkpoint.pt``, ``swa_checkpoint.pt`` or a plain state dictionary.

    Raises
    ------
    InputError
        As `read_openfold` does.
    """
    tree: Any = read_torch(path)
    if isinstance(tree, dict) and _CONTAINER in tree:
        tree = tree[_CONTAINER]
    state = find_state(tree, path)
    state = {n.removeprefix(_AVERAGE): v for n, v in state.items() if n != _AVERAGE_COUNT}
    return rename(strip_prefixes(state), NAMES)
