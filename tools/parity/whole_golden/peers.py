"""OpenFold's and MLPerf HPC's models and losses, run on real batches.

What is done to them on import (`peer_code`) and in a run, and why, stands beside each line and in
README.md.
"""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import torch
from tests.example import set_example_weights
from tests.parity.test_whole_golden import Result, gradient, named_outputs
from tools.parity.peer_code import EPS, PeerCode
from tools.parity.peer_models import (
    adapt_mlperf,
    adapt_openfold,
    mlperf_name,
    mlperf_of,
    openfold_of,
)
from torch import Tensor

from scalefold.config.model import ModelConfig
from scalefold.config.schema import LossConfig
from scalefold.features.contract import Features
from scalefold.model import AlphaFold


def _root_in_full(total: Tensor, last: Features) -> Tensor:
    """The peers take the root of the length in float32 always."""
    length = min(int(last["seq_length"]), last["aatype"].shape[1])
    rounded = torch.tensor(float(length), dtype=torch.float32).sqrt().item()
    return total * (math.sqrt(length) / rounded) if total.dtype == torch.float64 else total


class Peer:
    """One of the two codes.

    Parameters
    ----------
    kind : {"openfold", "mlperf"}
    folder : Path
        Of the checkout, which holds ``openfold/``.
    """

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self._code = PeerCode(kind, folder)
        if kind == "mlperf":
            # Recomputation in the backward pass is out of reach of decisions.py.
            for stack in ("evoformer_stack", "extra_msa_stack", "template_pair_stack"):
                module: Any = importlib.import_module(f"openfold.model.{stack}")
                if hasattr(module, "gradient_checkpointing_fn"):
                    module.gradient_checkpointing_fn = lambda block, *given: block(*given)

    def run(
        self,
        config: ModelConfig,
        loss: LossConfig,
        passes: list[Features],
        seed: int = 0,
        levelled: bool = True,
    ) -> Result:
        """Results under our names, in the type of the features; dropout off."""
        dtype = passes[0]["seq_mask"].dtype
        batch = {n: torch.stack([p[n] for p in passes], -1) for n in passes[0]}
        own = AlphaFold(config).to(dtype)
        set_example_weights(own, seed)
        runner = self._openfold if self._code.kind == "openfold" else self._mlperf
        with self._code.prepared(dtype, levelled):
            return runner(own, config, loss, batch, passes[-1], EPS if levelled else None)

    def _openfold(
        self,
        own: AlphaFold,
        config: ModelConfig,
        weights: LossConfig,
        batch: Features,
        last: Features,
        eps: dict[str, float] | None,
    ) -> Result:
        from openfold.config import model_config

        model = openfold_of(config).to(last["seq_mask"].dtype)
        model.load_state_dict(own.state_dict(), strict=True)
        settings = model_config("model_1_ptm" if config.pae_head else "model_1", train=True)
        loss = settings.copy_and_resolve_references().loss
        for name, key in _OPENFOLD_TERMS.items():
            loss[key].weight = getattr(weights, name)
            if eps is not None:
                loss[key].eps = eps[name]
        if eps is not None:
            loss.fape.backbone.eps = loss.fape.sidechain.eps = eps["fape"]
        out = model(batch)
        # its crop sets seq_length to the crop's
        length = last["seq_length"].clamp(max=last["aatype"].shape[1])
        given = {**last, "seq_length": length}
        total, found = self._code.loss.AlphaFoldLoss(loss)(out, given, _return_breakdown=True)
        total = _root_in_full(total, last)
        total.backward()
        terms = {name: found[key] for name, key in _OPENFOLD_TERMS.items() if key in found}
        return Result(
            named_outputs(adapt_openfold(out), last),
            {**terms, "total": total.detach()},
            {n: gradient(p) for n, p in model.named_parameters()},
        )

    def _mlperf(
        self,
        own: AlphaFold,
        config: ModelConfig,
        weights: LossConfig,
        batch: Features,
        last: Features,
        eps: dict[str, float] | None,
    ) -> Result:
        from openfold.config import LossConfig as PeerLossConfig

        model = mlperf_of(config).to(last["seq_mask"].dtype)
        state = own.state_dict()
        names = {mlperf_name(name): name for name in state}
        model.load_state_dict({t: state[name] for t, name in names.items()}, strict=True)
        loss = PeerLossConfig()
        for name, key in _MLPERF_TERMS.items():
            section = getattr(loss, f"{key}_config")
            section.weight = getattr(weights, name)
            if eps is not None:
                section.eps = eps[name]
        loss.tm_loss_config.enabled = config.pae_head
        out = model(batch)
        total, found = self._code.loss.AlphaFoldLoss(loss)(out, dict(last))
        total = _root_in_full(total, last)
        total.backward()
        terms = {name: found[key] for name, key in _OPENFOLD_TERMS.items() if key in found}
        return Result(
            named_outputs(adapt_mlperf(out), last),
            {**terms, "total": total.detach()},
            {names[n]: gradient(p) for n, p in model.named_parameters()},
        )


_OPENFOLD_TERMS = {
    "fape": "fape",
    "chi": "supervised_chi",
    "distogram": "distogram",
    "masked_msa": "masked_msa",
    "plddt": "plddt_loss",
    "experimentally_resolved": "experimentally_resolved",
    "violation": "violation",
    "pae": "tm",
}
_MLPERF_TERMS = {
    name: {"plddt": "plddt_loss", "pae": "tm_loss"}.get(name, f"{key}_loss")
    for name, key in _OPENFOLD_TERMS.items()
}
