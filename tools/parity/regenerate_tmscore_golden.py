"""Write ``tmscore_golden.json`` with the TMscore program (Debian package ``tm-align``).

python -m tools.parity.regenerate_tmscore_golden
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.unit.evaluate.conftest import MIRROR, _chain, perturb
from tests.unit.evaluate.test_superposed import CHAINS, GOLDEN, RECIPES, tmscore_program

from scalefold.evaluate.metrics import Comparison


def main() -> None:
    """Run the program on every case."""
    golden = {}
    with tempfile.TemporaryDirectory() as folder:
        for chain_key in CHAINS:
            true, mask, aatype = _chain(MIRROR, chain_key)
            for recipe in RECIPES:
                comparison = Comparison(perturb(true, recipe), mask, true, mask, aatype)
                golden[f"{chain_key} {recipe}"] = tmscore_program(comparison, Path(folder))
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
