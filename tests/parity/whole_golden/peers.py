"""OpenFold's and MLPerf HPC's models and losses, run on the batches of the golden test.

Only adapters stand here: a checkout of either is imported from the folder given. What is done to
it on import and in a run, and why, stands beside each line and in README.md.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import math
import re
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))
from test_whole_golden import Result, gradient, named_outputs

from scalefold.config.schema import LossConfig, ModelConfig
from scalefold.features.contract import Features
from scalefold.geometry.rigid import Rigid, quaternion_to_rotation
from scalefold.model import AlphaFold, Outputs, Structure
from scalefold.model.example import set_example_weights

# The eps of AlphaFold2's terms; both peers set one 1e-8 everywhere. Masked MSA and PAE: half,
# because the peers divide by eps + half the count, and then by two.
_EPS = {
    "chi": 1e-6,
    "distogram": 1e-6,
    "experimentally_resolved": 1e-8,
    "fape": 1e-4,
    "masked_msa": 0.5e-8,
    "pae": 0.5e-8,
    "plddt": 1e-8,
    "violation": 1e-6,
}


class _TorchInFloat64(types.ModuleType):
    """The torch module, but what it calls float32 is float64."""

    float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _level_fape(compute_fape: Any) -> Any:
    """The mean divided by eps + frames x points, not by (eps + frames)(eps + points)."""

    def levelled(*args: Any, **kwargs: Any) -> Tensor:
        value: Tensor = compute_fape(*args, **kwargs)
        eps = _EPS["fape"]
        given = inspect.signature(compute_fape).bind(*args, **kwargs).arguments
        f, p = given["frames_mask"].sum(-1), given["positions_mask"].sum(-1)
        return value * (eps + f) * (eps + p) / (eps + f * p)

    return levelled


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
        # Not through its __init__ files, which import CUDA extensions.
        for name in ("openfold", "openfold.utils") if kind == "openfold" else ("openfold",):
            package = types.ModuleType(name)
            package.__path__ = [str(folder / name.replace(".", "/"))]
            sys.modules[name] = package
        sys.modules["attn_core_inplace_cuda"] = types.ModuleType("attn_core_inplace_cuda")
        if kind == "openfold":
            self.rigid = importlib.import_module("openfold.utils.rigid_utils")
            self.loss = importlib.import_module("openfold.utils.loss")
            primitives: Any = importlib.import_module("openfold.model.primitives")
            # the plain attention in place of the CUDA one
            primitives.attention_core = lambda q, k, v, b1=None, b2=None: primitives._attention(
                q, k, v, [b for b in (b1, b2) if b is not None]
            )
            self.mean = "masked_mean"
        else:
            self._import_mlperf()
            self.rigid = importlib.import_module("openfold.rigid_utils")
            self.loss = importlib.import_module("openfold.loss")
            self.mean = "_masked_mean"
            # Recomputation in the backward pass is out of reach of decisions.py.
            for stack in ("evoformer_stack", "extra_msa_stack", "template_pair_stack"):
                module: Any = importlib.import_module(f"openfold.model.{stack}")
                if hasattr(module, "gradient_checkpointing_fn"):
                    module.gradient_checkpointing_fn = lambda block, *given: block(*given)

    @staticmethod
    def _import_mlperf() -> None:
        # Its configuration has mutable defaults, which Python 3.11 refuses unless hashable.
        original, reshape = dataclasses.dataclass, np.reshape

        def dataclass(cls: Any = None, **options: Any) -> Any:
            return original(cls, **{"unsafe_hash": True, **options})

        # numpy 2.4 no longer knows this argument
        def old_reshape(a: Any, *args: Any, newshape: Any = None, **options: Any) -> Any:
            return reshape(a, *(args if newshape is None else (newshape,)), **options)

        np.reshape = old_reshape  # type: ignore[assignment]
        dataclasses.dataclass = dataclass  # type: ignore[assignment]
        try:
            importlib.import_module("openfold.config")
        finally:
            dataclasses.dataclass = original

    @contextmanager
    def _prepared(self, dtype: torch.dtype, levelled: bool) -> Iterator[None]:
        """float64 throughout where that is asked for; means as in AlphaFold2 where levelled."""
        before = self.loss.compute_fape, getattr(self.loss, self.mean), torch.get_default_dtype()
        if levelled:
            self.loss.compute_fape = _level_fape(before[0])
            setattr(self.loss, self.mean, functools.partial(before[1], eps=1e-10))
        if dtype == torch.float64:
            self.rigid.torch = _TorchInFloat64("torch")  # it casts to float32
            torch.set_default_dtype(dtype)  # of constants
        try:
            yield
        finally:
            self.loss.compute_fape = before[0]
            setattr(self.loss, self.mean, before[1])
            self.rigid.torch = torch
            torch.set_default_dtype(before[2])

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
        runner = self._openfold if self.kind == "openfold" else self._mlperf
        with self._prepared(dtype, levelled):
            return runner(own, config, loss, batch, passes[-1], _EPS if levelled else None)

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
        from regenerate_model_golden import adapt, openfold_of

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
        total, found = self.loss.AlphaFoldLoss(loss)(out, given, _return_breakdown=True)
        total = _root_in_full(total, last)
        total.backward()
        terms = {name: found[key] for name, key in _OPENFOLD_TERMS.items() if key in found}
        return Result(
            named_outputs(adapt(out), last),
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
        from openfold.model.alphafold import AlphaFold as PeerModel

        model = PeerModel(mlperf_config(config)).to(last["seq_mask"].dtype)
        state = own.state_dict()
        names = {mlperf_name(name): name for name in state}
        model.load_state_dict({t: state[name] for t, name in names.items()}, strict=True)
        model.train()
        loss = PeerLossConfig()
        for name, key in _MLPERF_TERMS.items():
            section = getattr(loss, f"{key}_config")
            section.weight = getattr(weights, name)
            if eps is not None:
                section.eps = eps[name]
        loss.tm_loss_config.enabled = config.pae_head
        out = model(batch)
        total, found = self.loss.AlphaFoldLoss(loss)(out, dict(last))
        total = _root_in_full(total, last)
        total.backward()
        terms = {name: found[key] for name, key in _OPENFOLD_TERMS.items() if key in found}
        return Result(
            named_outputs(_adapt_mlperf(out), last),
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


def mlperf_name(name: str) -> str:
    """Our parameter's name in MLPerf HPC's code."""
    name = re.sub(r"^aux_heads\.", "auxiliary_heads.", name)
    name = re.sub(r"^evoformer\.", "evoformer_stack.", name)
    name = re.sub(r"(blocks\.\d+\.)(msa_transition|outer_product_mean)", r"\1core.\2", name)
    name = re.sub(r"(blocks\.\d+\.)pair_stack\.", r"\1core.", name)
    for ours, theirs in (
        ("template_embedder.template_single_embedder", "template_angle_embedder"),
        ("template_embedder.template_pointwise_att.", "template_pointwise_attention."),
        ("template_embedder.", ""),
        ("_msa_att.", ""),
        ("points.linear.", "points."),
        ("transition.layers.0.", "transition."),
    ):
        name = name.replace(ours, theirs)
    return name


def _set(section: Any, **values: Any) -> None:
    for name, value in values.items():
        if not hasattr(section, name):
            raise AttributeError(f"{type(section).__name__} has no {name}")
        setattr(section, name, value)


def mlperf_config(config: ModelConfig) -> Any:
    """MLPerf HPC's configuration of the same sizes, without dropout."""
    from openfold.config import AlphaFoldConfig

    c: Any = AlphaFoldConfig()
    t, s = config.template, config.structure
    _set(c, templates_enabled=t.enabled)
    _set(c.input_embedder_config, c_z=config.c_z, c_m=config.c_m)
    _set(c.recycling_embedder_config, c_z=config.c_z, c_m=config.c_m)
    _set(c.template_angle_embedder_config, c_m=config.c_m)
    _set(c.template_pair_embedder_config, c_t=t.c_t)
    _set(
        c.template_pair_stack_config,
        c_t=t.c_t,
        c_hidden_tri_att=t.c_hidden_attention,
        c_hidden_tri_mul=t.c_hidden_triangle,
        num_blocks=t.num_blocks,
        num_heads_tri=t.num_heads,
        pair_transition_n=t.transition_factor,
        dropout_rate=0.0,
    )
    _set(
        c.template_pointwise_attention_config,
        c_t=t.c_t,
        c_z=config.c_z,
        c_hidden=t.c_hidden_pointwise,
        num_heads=t.num_heads_pointwise,
    )
    _set(c.extra_msa_embedder_config, c_e=config.c_e)
    for section, stack in (
        (c.extra_msa_stack_config, config.extra_msa),
        (c.evoformer_stack_config, config.evoformer),
    ):
        _set(
            section,
            c_z=config.c_z,
            c_hidden_msa_att=stack.c_hidden_msa,
            c_hidden_opm=stack.c_hidden_outer,
            c_hidden_tri_mul=stack.c_hidden_triangle,
            c_hidden_tri_att=stack.c_hidden_pair,
            num_heads_msa=stack.num_heads_msa,
            num_heads_tri=stack.num_heads_pair,
            num_blocks=stack.num_blocks,
            transition_n=stack.transition_factor,
            msa_dropout=0.0,
            pair_dropout=0.0,
        )
    # AlphaFold2's, not 1e-8
    _set(c.extra_msa_stack_config, c_e=config.c_e, eps=1e-10)
    _set(c.evoformer_stack_config, c_m=config.c_m, c_s=config.c_s)
    _set(
        c.structure_module_config,
        c_s=config.c_s,
        c_z=config.c_z,
        c_hidden_ipa=s.c_hidden,
        c_hidden_ang_res=s.c_angle,
        num_heads_ipa=s.num_heads,
        num_qk_points=s.num_qk_points,
        num_v_points=s.num_v_points,
        dropout_rate=0.0,
        num_blocks=s.num_layers,
        num_ang_res_blocks=s.num_angle_blocks,
    )
    heads = c.auxiliary_heads_config
    _set(heads, tm_score_head_enabled=config.pae_head)
    _set(heads.per_residue_lddt_ca_predictor_config, c_s=config.c_s, c_hidden=config.c_plddt)
    _set(heads.distogram_head_config, c_z=config.c_z)
    _set(heads.masked_msa_head_config, c_m=config.c_m)
    _set(heads.experimentally_resolved_head_config, c_s=config.c_s)
    _set(heads.tm_score_head_config, c_z=config.c_z)
    return c


def _adapt_mlperf(result: dict[str, Tensor]) -> Outputs:
    """Its outputs in our contract: layers before samples."""
    by_layer = {
        name.removeprefix("sm_"): value.transpose(0, 1)
        for name, value in result.items()
        if name.startswith("sm_") and name != "sm_single"
    }
    frames = by_layer["frames"]
    return Outputs(
        msa=result["msa"],
        pair=result["pair"],
        single=result["single"],
        structure=Structure(
            backbone=Rigid(quaternion_to_rotation(frames[..., :4]), frames[..., 4:]),
            sidechain=Rigid.from_4x4(by_layer["sidechain_frames"]),
            unnormalized_angles=by_layer["unnormalized_angles"],
            angles=by_layer["angles"],
            positions=by_layer["positions"],
            single=result["sm_single"],
        ),
        positions=result["final_atom_positions"],
        position_mask=result["final_atom_mask"],
        distogram_logits=result["distogram_logits"],
        masked_msa_logits=result["masked_msa_logits"],
        plddt_logits=result["lddt_logits"],
        experimentally_resolved_logits=result["experimentally_resolved_logits"],
        pae_logits=result.get("tm_logits"),
    )
