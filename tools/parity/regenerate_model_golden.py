"""Write ``model_golden.json`` from the public OpenFold; see README_model.md.

    python -m tools.parity.regenerate_model_golden <folder that holds openfold/>

Nothing of it is in this repository.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from tests.example import set_example_weights
from tests.parity.test_model_golden import (
    CASES,
    GOLDEN,
    model_config,
    named_outputs,
    passes_of,
    record,
    scalar,
)
from tools.parity.peer_code import PeerCode
from tools.parity.peer_models import adapt_openfold, openfold_of
from torch import Tensor

from scalefold.config.model import ModelConfig
from scalefold.features.contract import Features
from scalefold.model import AlphaFold


def run_openfold(
    config: ModelConfig, passes: list[Features]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Named outputs and gradients, in float64, of the example weights."""
    own = AlphaFold(config).double()
    set_example_weights(own)
    model = openfold_of(config).double()
    model.load_state_dict(own.state_dict(), strict=True)
    batch = {n: torch.stack([p[n] for p in passes], -1) for n in passes[0]}
    named = named_outputs(adapt_openfold(model(batch)), passes[-1])
    scalar(named).backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return named, gradients


def main() -> None:
    golden = {}
    with PeerCode("openfold", Path(sys.argv[1])).prepared(torch.float64, levelled=False):
        for case in CASES:
            golden[case] = record(*run_openfold(model_config(case), passes_of(case)))
    lines = [f"{json.dumps(case)}: {json.dumps(content)}" for case, content in golden.items()]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main()
