"""From a folder of structures and a file of weights to a list of chains and a configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from scalefold.config.identity import leaves
from scalefold.config.load import make_config, merge
from scalefold.errors import InputError, counted, listed
from scalefold.finetune.alignments import check_alignments, find_alignments
from scalefold.finetune.listing import RELATIVES, Listing, list_chains
from scalefold.finetune.request import Request
from scalefold.finetune.settings import check_command, write_settings
from scalefold.finetune.structures import MIRROR_PATH, collect_structures
from scalefold.finetune.weights import PRESET, read_given_weights
from scalefold.io.atomic import check_writable
from scalefold.optim.trainable import trained_names
from scalefold.raw.rejected import Rejected, read_rejected, write_rejected
from scalefold.weights.matching import model_shapes

_OWN: Final = frozenset(
    (
        "run_name", "results", "preset", "data.chains", "data.mirrors.mmcif",
        "data.mirrors.mmcif_path", "training.initial_weights",
    )
)  # fmt: skip
"""Keys that follow from the arguments."""


@dataclass(frozen=True)
class Prepared:
    """What was written.

    Attributes
    ----------
    unusable : list of Rejected
        Structures and chains that cannot be used. Relatives of held-out chains are not among them.
    facts : tuple of str
        What there is to say, a line a fact; empty for a run that goes on.
    """

    unusable: list[Rejected]
    facts: tuple[str, ...]


def prepare(request: Request, *, anew: bool, jobs: int) -> Prepared:
    """Write the list of chains, the mirrors and the configuration, unless they are there.

    Parameters
    ----------
    anew : bool
        Write them, even if they are there.

    Raises
    ------
    InputError
        Bad structures, alignments or weights, as the modules beside this one say; the run's folder
        cannot be written, or was made by other arguments.
    """
    if not anew and check_command(request.settings, request.command):
        return Prepared(_unusable(read_rejected(request.rejected)), ())
    _check_overrides(request.overrides)
    base = _base(request)
    limit = make_config(base).data.max_structure_bytes  # refuses what --out or --set says wrong
    check_writable(request.out, "--out")
    search = request.overrides.get("search")
    check_alignments(request.alignments, query_alone=request.query_alone, search=search)
    weights = read_given_weights(request.weights, request.preset)
    structures = collect_structures(request.structures, request.mirror, limit, jobs)
    alignments = find_alignments(
        structures.sequences,
        request.alignments,
        request.queries,
        query_alone=request.query_alone,
        search=search,
    )
    rejected = [*structures.rejected, *alignments.rejected]
    write_rejected(request.rejected, rejected)
    listing = _list(request, alignments.sequences, rejected, jobs)
    rejected += listing.left_out
    write_rejected(request.rejected, rejected)

    tree = base
    for layer in ({"data": alignments.data}, weights.settings, dict(request.overrides)):
        tree = merge(tree, layer)
    config = make_config(tree)
    trained_names(model_shapes(config.model), config.training.trainable)
    counts = listing.counts
    about = (
        f"Fine-tuning of {request.weights.name} on {counted(counts['train'], 'chain')}, with "
        f"{counts['validation']} held out."
    )
    write_settings(request.settings, tree, request.command, about)
    number = alignments.num_queries
    queries = f"; for {counted(number, 'chain')} the sequence alone" if number else ""
    where = f", see {request.rejected}" if rejected else ""
    facts = (
        f"weights: {request.weights}: {weights.model}, {weights.num_parameters:,} parameters",
        f"structures: {counted(structures.num_files, 'file')} with "
        f"{counted(len(structures.sequences), 'protein chain')}",
        f"alignments: {', '.join(alignments.data['alignments'])}{queries}",
        f"left out of the list: {len(rejected)}{where}",
        *listing.warnings,
    )
    return Prepared(_unusable(rejected), facts)


def _list(
    request: Request, sequences: Mapping[str, str], rejected: Sequence[Rejected], jobs: int
) -> Listing:
    """List the chains; an error also names what was left out before, which may be its cause."""
    try:
        return list_chains(request, sequences, jobs)
    except InputError as error:
        reasons = [f"{one.chain_key}: {one.reason}" for one in rejected]
        also = f"\nLeft out before that, see {request.rejected}:{listed(reasons)}"
        raise InputError(f"{error}{also if reasons else ''}") from None


def _check_overrides(overrides: Mapping[str, Any]) -> None:
    """Refuse settings that a fine-tuning makes itself, as a run's whole configuration has them."""
    own = [key for key, _ in leaves(overrides) if key in _OWN]
    if own:
        raise InputError(
            f"--config or --set: {', '.join(own)}: finetune sets this itself. Give only other "
            "settings, such as the sections search and training, in a file of their own"
        )


def _base(request: Request) -> dict[str, Any]:
    """The settings that follow from the arguments alone."""
    mirrors = {
        "mmcif": [str(request.mirror)],
        "mmcif_path": MIRROR_PATH,
        "alignments": [str(request.queries)],
    }
    tree: dict[str, Any] = {
        "run_name": request.out.name,
        "results": str(request.out.parent),
        "preset": PRESET,
        "data": {"chains": str(request.chains), "mirrors": mirrors},
        "training": {"initial_weights": str(request.weights)},
    }
    if request.validation == 0:
        # Nothing to judge by: all steps are made, and the training chains are evaluated.
        tree["evaluation"] = {"mode": "after", "patience": None, "splits": ["train"]}
    return merge(tree, dict(request.overrides))


def _unusable(rejected: Iterable[Rejected]) -> list[Rejected]:
    return [one for one in rejected if one.stage != RELATIVES]
