"""Time OpenFold's inference on the chains of ``scalefold bench prediction``, for its record.

The weights are those of that benchmark, under the same names, and so are the features. OpenFold
runs as its script for inference sets it up: float32 whose matrix products are TF32, chunk sizes
tuned for each length. Its attention kernels need packages that are not asked for here (DeepSpeed,
FlashAttention), and its softmax in place, a CUDA extension, is torch's.

    python -m tools.measure_openfold --openfold CHECKOUT -c demo/mlperf.yaml -s preset=model_1_ptm \
        --length 512 --chains 12 -o openfold.json

The environment has ml_collections beside scalefold.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from scalefold.bench.lengths import PDB_LIKE
from scalefold.bench.prediction import (
    DISTRIBUTION,
    made_up_features,
    proteins_an_hour,
    timed,
)
from scalefold.bench.record import provenance, write_record
from scalefold.cli.options import parse_overrides
from scalefold.config import Config, load_config
from scalefold.model import AlphaFold


def import_openfold(folder: Path) -> None:
    """Make the checkout's model importable, without what training alone needs."""
    for name in ("openfold", "openfold.utils", "openfold.data"):
        # Not through its __init__ files, which import the whole training.
        package = types.ModuleType(name)
        package.__path__ = [str(folder / name.replace(".", "/"))]
        sys.modules[name] = package
    softmax: Any = types.ModuleType("attn_core_inplace_cuda")
    softmax.forward_ = _softmax_in_place
    sys.modules["attn_core_inplace_cuda"] = softmax
    if importlib.util.find_spec("tree") is None:  # dm-tree, for one table of constants
        tree: Any = types.ModuleType("tree")
        tree.map_structure = _map_structure
        sys.modules["tree"] = tree
    # Weights are loaded: drawing others by SciPy takes longer than all else.
    primitives: Any = importlib.import_module("openfold.model.primitives")
    primitives.trunc_normal_init_ = lambda weights, **options: None


def _softmax_in_place(logits: Tensor, rows: int, columns: int) -> None:
    torch.softmax(logits, -1, out=logits)


def _map_structure(function: Callable[[Any], Any], structure: Any) -> Any:
    if isinstance(structure, dict):
        return {key: _map_structure(function, value) for key, value in structure.items()}
    if isinstance(structure, list):
        return [_map_structure(function, value) for value in structure]
    return function(structure)


def openfold_model(config: Config, chunk_tuning: bool, device: torch.device) -> nn.Module:
    """OpenFold's model of the preset's name, with the weights of the benchmark.

    Parameters
    ----------
    config : Config
    chunk_tuning : bool
        Whether chunk sizes are tuned; else all is in chunks of 4.
    device : torch.device
    """
    from openfold.config import model_config
    from openfold.model.model import AlphaFold as OpenFold

    settings = model_config(config.preset)
    for stack in (
        settings.model.template.template_pair_stack,
        settings.model.extra_msa.extra_msa_stack,
        settings.model.evoformer_stack,
    ):
        stack.tune_chunk_size = chunk_tuning
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        weights = AlphaFold(config.model).state_dict()
    model = OpenFold(settings)
    model.load_state_dict(weights, strict=True)
    return model.to(device).eval()


def predict(
    model: nn.Module, features: dict[str, Tensor], passes: int, bf16: bool, device: torch.device
) -> dict[str, Tensor]:
    """All passes of a chain; its structure on the CPU."""
    batch = {
        name: tensor[..., None].expand(*tensor.shape, passes) for name, tensor in features.items()
    }
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        out = model(batch)
    return {name: out[name].float().cpu() for name in ("final_atom_positions", "plddt")}


def main() -> None:
    arguments = _arguments()
    config = load_config(arguments.config, parse_overrides(arguments.set))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    import_openfold(arguments.openfold)
    torch.set_float32_matmul_precision("high")  # as its script does on such GPUs
    model = openfold_model(config, not arguments.no_tuning, device)
    passes = config.evaluation.recycling + 1
    result = provenance("prediction", config, device) | {
        "command": " ".join(["python -m tools.measure_openfold", *sys.argv[1:]]),
        "code": "OpenFold",
        "openfold_commit": arguments.commit,
        "passes": passes,
        "templates_filled": 0,
        "parameters": sum(p.numel() for p in model.parameters()),
        "precision": "bf16 autocast" if arguments.bf16 else "tf32",
        "chunk_tuning": not arguments.no_tuning,
        "by_length": [],
        "mix": {"distribution": DISTRIBUTION, "chains": []},
    }
    began = time.perf_counter()
    chains = PDB_LIKE.quantiles(arguments.chains)
    work = [(result["by_length"], length) for length in arguments.length]
    work += [(result["mix"]["chains"], length) for length in chains]
    for rows, length in work:
        row: dict[str, Any] = {"residues": length}
        if time.perf_counter() - began > arguments.seconds:
            rows.append(row | {"error": f"left out after {arguments.seconds} s"})
            continue
        features = made_up_features(length, config.features, device)
        rows.append(
            row
            | timed(
                lambda f=features: predict(model, f, passes, arguments.bf16, device), passes, device
            )
        )
        print(rows[-1], flush=True)
        write_record(result, arguments.out)
    result["mix"] |= proteins_an_hour(result["mix"]["chains"])
    write_record(result, arguments.out)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--openfold", type=Path, required=True, help="folder that holds openfold/")
    parser.add_argument("--commit", help="of that checkout, for the record")
    parser.add_argument("-c", "--config", type=Path, action="append", required=True)
    parser.add_argument("-s", "--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--length", type=int, action="append", default=[])
    parser.add_argument("--chains", type=int, default=12)
    parser.add_argument("--bf16", action="store_true", help="autocast instead of TF32")
    parser.add_argument("--no-tuning", action="store_true", help="chunks of 4")
    parser.add_argument("--seconds", type=float, default=3600, help="start no chain after this")
    parser.add_argument("-o", "--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
