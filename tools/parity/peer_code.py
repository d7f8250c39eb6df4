"""Imports OpenFold's or MLPerf HPC's code from a checkout, and fixes what keeps it from float64.

For the scripts that compare with them or make golden numbers; no test needs them. The environment
has ml_collections, dm-tree, modelcif (OpenFold) and dacite (MLPerf HPC) beside scalefold. The
checkout is of aqlaboratory/openfold, and has ``openfold/resources/stereo_chemical_props.txt``,
which its installation downloads; or the folder ``openfold`` of mlcommons/hpc.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

# The eps of AlphaFold2's terms; both peers set one 1e-8 everywhere. Masked MSA and PAE: half,
# because the peers divide by eps + half the count, and then by two.
EPS = {
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

    def __init__(self) -> None:
        super().__init__("torch")

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class PeerCode:
    """The code of one of the two, importable as ``openfold`` from then on.

    Parameters
    ----------
    kind : {"openfold", "mlperf"}
    folder : Path
        Of the checkout, which holds ``openfold/``.

    Attributes
    ----------
    loss, rigid : module
        Loss terms, and the rigid transforms that they and the model use.
    """

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        packages = {"openfold": ["openfold", "openfold.utils"], "mlperf": ["openfold"]}[kind]
        # Not through its __init__ files, which import CUDA extensions.
        for name in packages:
            package = types.ModuleType(name)
            package.__path__ = [str(folder / name.replace(".", "/"))]
            sys.modules[name] = package
        if kind == "openfold":
            _use_plain_attention()
        else:
            _import_mlperf_config()
        self.loss: Any = importlib.import_module(f"{packages[-1]}.loss")
        self.rigid: Any = importlib.import_module(f"{packages[-1]}.rigid_utils")
        self._mean = "masked_mean" if kind == "openfold" else "_masked_mean"

    @contextmanager
    def prepared(self, dtype: torch.dtype, levelled: bool) -> Iterator[None]:
        """float64 throughout where that is asked for; means as in AlphaFold2 where levelled."""
        fape, mean = self.loss.compute_fape, getattr(self.loss, self._mean)
        default = torch.get_default_dtype()
        if levelled:
            self.loss.compute_fape = _level_fape(fape)
            setattr(self.loss, self._mean, functools.partial(mean, eps=1e-10))
        if dtype == torch.float64:
            self.rigid.torch = _TorchInFloat64()  # it casts to float32
            torch.set_default_dtype(dtype)  # of constants
        try:
            yield
        finally:
            self.loss.compute_fape = fape
            setattr(self.loss, self._mean, mean)
            self.rigid.torch = torch
            torch.set_default_dtype(default)


def _use_plain_attention() -> None:
    sys.modules["attn_core_inplace_cuda"] = types.ModuleType("attn_core_inplace_cuda")
    primitives: Any = importlib.import_module("openfold.model.primitives")
    primitives.attention_core = lambda q, k, v, b1=None, b2=None: primitives._attention(
        q, k, v, [b for b in (b1, b2) if b is not None]
    )


def _import_mlperf_config() -> None:
    # Its configuration has mutable defaults, which Python 3.11 refuses unless hashable.
    original, reshape = dataclasses.dataclass, np.reshape

    def dataclass(cls: Any = None, **options: Any) -> Any:
        return original(cls, **{"unsafe_hash": True, **options})

    # numpy 2.4 no longer knows this argument
    def old_reshape(a: Any, *args: Any, newshape: Any = None, **options: Any) -> Any:
        return reshape(a, *(args if newshape is None else (newshape,)), **options)

    np.reshape = old_reshape
    dataclasses.dataclass = dataclass
    try:
        importlib.import_module("openfold.config")
    finally:
        dataclasses.dataclass = original


def _level_fape(compute_fape: Any) -> Any:
    """The mean divided by eps + frames x points, not by (eps + frames)(eps + points)."""

    def levelled(*args: Any, **kwargs: Any) -> Tensor:
        value: Tensor = compute_fape(*args, **kwargs)
        given = inspect.signature(compute_fape).bind(*args, **kwargs).arguments
        eps, f, p = EPS["fape"], given["frames_mask"].sum(-1), given["positions_mask"].sum(-1)
        return value * (eps + f) * (eps + p) / (eps + f * p)

    return levelled
