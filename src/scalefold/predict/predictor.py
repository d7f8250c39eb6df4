"""Predict whole chains: the recycling loop without gradients.

On a GPU chains are padded to a few lengths, so that kernels are compiled for few shapes. Short
chains are replayed as CUDA graphs, because their launches would take longer than their work.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from scalefold.checkpoint.provenance import device_name
from scalefold.chem.residues import CA
from scalefold.config.model import ModelConfig
from scalefold.config.schema import Config
from scalefold.engine.cuda_graphs import CapturedPasses
from scalefold.engine.precision import Precision, narrow_model, set_matrix_products
from scalefold.errors import InputError
from scalefold.features.contract import INPUT_FEATURES, Features
from scalefold.features.padding import pad, pad_to_degree, without_empty_slots
from scalefold.model import AlphaFold, Outputs, Previous, Templates
from scalefold.model.assembly import Assembly
from scalefold.model.confidence import expected_aligned_error, predicted_tm_score
from scalefold.model.passes import SamplePasses, Settled, never
from scalefold.ops import select_ops
from scalefold.ops.chunked import chunked
from scalefold.ops.in_place import in_place
from scalefold.parallel import ALONE, SINGLE, Mesh, Ranks
from scalefold.predict.pair_maps import PairMaps, pair_maps
from scalefold.weights import State

LENGTH_STEP: Final = 64
"""On a GPU chains are padded to multiples of this."""
LONGEST_GRAPHED: Final = 768
"""Longer chains keep a GPU busy without graphs, and their graphs would take much memory. They are
predicted without empty template slots. At 512 residues, graphs make an H100 2.8 times as fast.
"""
MAX_PART_ELEMENTS: Final = 2**28
"""Longer chains are computed in parts where kernels do not serve, see `scalefold.ops.chunked`. This
is 1 GiB of logits, those of triangle attention at 406 residues. With kernels, too, representations
with more numbers are updated in place, see `scalefold.ops.in_place`: those of pairs from 1,449
residues on. It is the same on all devices, so that numbers do not depend on their memory.
"""


class Prediction(NamedTuple):
    """A predicted chain, on the CPU.

    Attributes
    ----------
    positions : Tensor, shape (N, 37, 3), float32
        Å.
    position_mask : Tensor, shape (N, 37)
    plddt_logits : Tensor, shape (N, bins), float32
    num_passes : int
        Passes that were made.
    pae : Tensor or None, shape (N, N), float32
        Expected error of residue j when aligned on residue i, Å; None without the head.
    ptm : float or None
        Predicted TM-score; None without the head.
    maps : PairMaps or None
        Expected distances and aligned errors of sampled residues.
    """

    positions: Tensor
    position_mask: Tensor
    plddt_logits: Tensor
    num_passes: int
    pae: Tensor | None
    ptm: float | None
    maps: PairMaps | None = None


class Predictor:
    """A model that predicts whole chains.

    Parameters
    ----------
    model : AlphaFold
        On its device, in evaluation mode.
    length_step : int
        Chains are padded to multiples of this; 1: not at all.
    graphs : bool
        Replay short chains as CUDA graphs. Only those of the last length are kept, so pass chains
        in the order of their length.
    tolerance_angstrom : float, optional
        Recycling ends when it moves atoms less than this, see `Movement`; default: never.
    ranks : Ranks, optional
        Those that share the chain, as the model's axis does. All make the same calls.
    """

    def __init__(
        self,
        model: AlphaFold,
        config: ModelConfig,
        *,
        length_step: int,
        graphs: bool,
        tolerance_angstrom: float = 0.0,
        ranks: Ranks = ALONE,
    ) -> None:
        self._model, self._config, self._ranks = model, config, ranks
        self._tolerance_angstrom = tolerance_angstrom
        self._passes = _Inference(model, config)
        self._length_step, self._graphs = length_step, graphs
        self._captured: tuple[int, CapturedPasses[Outputs]] | None = None

    def load(self, weights: State) -> None:
        """Take other weights of the same model: they are copied into its buffers."""
        self._model.load_state_dict(weights)

    @torch.inference_mode()
    def __call__(self, passes: Sequence[Features]) -> Prediction:
        """Run all recycling passes of one chain.

        Parameters
        ----------
        passes : sequence of dict
            Features of each pass, B = 1, on the model's device; at least one.
        """
        length = passes[0]["aatype"].shape[1]
        padded = -(-length // self._length_step) * self._length_step
        if padded > LONGEST_GRAPHED:
            passes = without_empty_slots(passes)
        rows = self._config.template.num_rows(passes[0]["template_aatype"].shape[1])
        inputs = [{name: features[name] for name in INPUT_FEATURES} for features in passes]
        inputs = [
            pad_to_degree(pad(features, {"N": padded}), self._ranks.size, rows)
            for features in inputs
        ]
        padded = inputs[0]["aatype"].shape[1]
        movement = Movement(length, self._tolerance_angstrom)

        def settled(positions: Tensor) -> bool:
            # the first's decision, for all
            return self._ranks.broadcast_on_host(movement(positions))

        outputs = self._outputs(inputs, padded, settled if self._tolerance_angstrom else never)
        pae, ptm = self._aligned_errors(outputs, length)
        return Prediction(
            positions=outputs.positions[0, :length].cpu(),
            position_mask=outputs.position_mask[0, :length].cpu(),
            plddt_logits=outputs.plddt_logits[0, :length].cpu(),
            num_passes=movement.num_passes + 1 if self._tolerance_angstrom else len(passes),
            pae=pae,
            ptm=ptm,
            maps=self._maps(outputs, length),
        )

    def _maps(self, outputs: Outputs, length: int) -> PairMaps:
        pae = None if outputs.pae_logits is None else outputs.pae_logits[0]
        most = self._config.max_pae_angstrom
        return pair_maps(outputs.distogram_logits[0], pae, length, most)

    def _aligned_errors(self, outputs: Outputs, length: int) -> tuple[Tensor | None, float | None]:
        if outputs.pae_logits is None:
            return None, None
        logits, most = outputs.pae_logits[:, :length, :length], self._config.max_pae_angstrom
        ptm = predicted_tm_score(logits, logits.new_ones(1, length), most)
        return expected_aligned_error(logits, most)[0].float().cpu(), float(ptm)

    def _outputs(self, passes: list[Features], length: int, settled: Settled) -> Outputs:
        if not self._graphs or length > LONGEST_GRAPHED:
            self._captured = None  # a long chain may need the memory
            return self._passes(passes, settled)
        if self._captured is None or self._captured[0] != length:
            self._captured = None
            pool = torch.cuda.graph_pool_handle()
            self._captured = length, CapturedPasses(self._passes, passes[0], pool)
        return self._captured[1](passes, settled)


class _Inference(SamplePasses[Outputs]):
    def last(self, features: Features, previous: Previous, templates: Templates | None) -> Outputs:
        return self._model(features, previous, templates)[0]


class Movement:
    """Tells when recycling has settled, as ColabFold's early stop does.

    Distances between C-alpha atoms are compared with those of the pass before, as root mean square.
    So rotation and translation do not matter.

    Parameters
    ----------
    length : int
        Residues; the rest is padding.
    tolerance_angstrom : float
        Recycling has settled when the distances change by less.
    """

    def __init__(self, length: int, tolerance_angstrom: float) -> None:
        self._length, self._tolerance_angstrom = length, tolerance_angstrom
        self._before: Tensor | None = None
        self.num_passes = 0

    def __call__(self, positions: Tensor) -> bool:
        """Note the positions (1, N, 37, 3) after a pass; return whether recycling has settled."""
        self.num_passes += 1
        atoms = positions[0, : self._length, CA]
        before, self._before = (
            self._before,
            torch.cdist(atoms, atoms, compute_mode="donot_use_mm_for_euclid_dist"),
        )
        if before is None:
            return False
        change = (self._before - before).square().mean().sqrt()
        return bool(change < self._tolerance_angstrom)


@contextlib.contextmanager
def memory_explained(length: int, device: torch.device) -> Iterator[None]:
    """Turn an exhausted device into an `InputError` about the chain."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        raise InputError(
            f"{length} residues need more memory than {device_name(device)} has; use a larger "
            "device or lower evaluation.max_length"
        ) from error


def not_finite(prediction: Prediction) -> str | None:
    """Name the parts of a prediction that hold NaN or infinity, None if there are none."""
    wrong = [
        name
        for name, value in (
            ("positions", prediction.positions),
            ("pLDDT logits", prediction.plddt_logits),
        )
        if not bool(torch.isfinite(value).all())
    ]
    return " and ".join(wrong) or None


def predictor(
    config: Config,
    weights: State,
    device: torch.device,
    tolerance_angstrom: float = 0.0,
    mesh: Mesh = SINGLE,
) -> Predictor:
    """Assemble a model for inference; on a GPU with kernels and graphs as training is configured.

    Parameters
    ----------
    config : Config
        ``model``, ``evaluation.precision``, ``training.kernels``, ``training.cuda_graphs`` are
        used.
    tolerance_angstrom : float, optional
        As for `Predictor`.
    mesh : Mesh, optional
        All processes that share a chain make this call.
    """
    precision, on_gpu = choose_precision(config, device), device.type == "cuda"
    set_matrix_products(precision, device)
    ops = select_ops(config.training.kernels if on_gpu else "torch", device)
    ops = in_place(chunked(ops, MAX_PART_ELEMENTS), MAX_PART_ELEMENTS)
    model = AlphaFold(config.model, Assembly(ops, mesh.axis))
    model.load_state_dict(weights)
    model = model.to(device).eval().requires_grad_(False)
    narrow_model(model, precision)
    return Predictor(
        model,
        config.model,
        length_step=LENGTH_STEP if on_gpu else 1,
        graphs=on_gpu and config.training.cuda_graphs is not False,
        tolerance_angstrom=tolerance_angstrom,
        ranks=mesh.dap,
    )


def choose_precision(config: Config, device: torch.device) -> Precision:
    """Decide on ``evaluation.precision``; auto is training's on a GPU, and float32 on a CPU."""
    if config.evaluation.precision != "auto":
        return config.evaluation.precision
    return config.training.precision if device.type == "cuda" else "fp32"
