"""AlphaFold's published parameters (``params_model_*.npz``): names and layouts as tables.

A haiku name is ``alphafold/alphafold_iteration/<scope>//<leaf>``. Each table below pairs scopes and
leaves with the names of ours and says how the array is laid out; blocks of a stack share one
array with the block number first. Sources: the modules of AlphaFold's ``model/modules.py`` and
``folding.py``, and Jumper et al. 2021, Suppl. Algs. 2-32, for what corresponds to what.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from scalefold.config.model import ModelConfig
from scalefold.errors import InputError
from scalefold.weights.archive import archive_kind, read_arrays
from scalefold.weights.matching import State, model_shapes, refuse_differences

PREFIX: Final = "alphafold/alphafold_iteration/"
_MAX_VALUE_BYTES: Final = 8  # float64; AlphaFold's are float32
_MAX_HEADER_BYTES: Final = 16 << 20  # of all arrays


class Layout(Enum):
    """How an array becomes a parameter of `torch.nn.Linear` or `LayerNorm`."""

    INPUT_FIRST = "(in, *out) -> (out, in)"
    OUTPUT_LAST = "(*in, out) -> (out, in)"
    FLAT = "any shape -> one dimension"

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        """Convert one block's array."""
        match self:
            case Layout.INPUT_FIRST:
                return array.reshape(array.shape[0], -1).T
            case Layout.OUTPUT_LAST:
                return array.reshape(-1, array.shape[-1]).T
            case Layout.FLAT:
                return array.reshape(-1)


class ArrayMap(NamedTuple):
    """One array of AlphaFold's and the parameters that it becomes, one for each block."""

    key: str
    names: tuple[str, ...]
    layout: Layout
    stacked: bool


class Leaf(NamedTuple):
    """Where a leaf goes: our name below the module, and the layout."""

    name: str
    layout: Layout


# A module's table: a key "//<leaf>" is an array, any other is a scope with a table of its own.
Table = Mapping[str, "Leaf | tuple[str, Table]"]

_IN, _OUT, _FLAT = Layout.INPUT_FIRST, Layout.OUTPUT_LAST, Layout.FLAT

_LINEAR: Final[Table] = {"//weights": Leaf("weight", _IN), "//bias": Leaf("bias", _FLAT)}
_NORM: Final[Table] = {"//scale": Leaf("weight", _FLAT), "//offset": Leaf("bias", _FLAT)}

_ATTENTION: Final[Table] = {
    "//query_w": Leaf("linear_q.weight", _IN),
    "//key_w": Leaf("linear_k.weight", _IN),
    "//value_w": Leaf("linear_v.weight", _IN),
    "//output_w": Leaf("linear_o.weight", _OUT),
    "//output_b": Leaf("linear_o.bias", _FLAT),
}
_GATED: Final[Table] = {
    **_ATTENTION,
    "//gating_w": Leaf("linear_g.weight", _IN),
    "//gating_b": Leaf("linear_g.bias", _FLAT),
}
_TRANSITION: Final[Table] = {
    "input_layer_norm": ("layer_norm", _NORM),
    "transition1": ("linear_1", _LINEAR),
    "transition2": ("linear_2", _LINEAR),
}
_TRIANGLE_ATTENTION: Final[Table] = {
    "query_norm": ("layer_norm", _NORM),
    "//feat_2d_weights": Leaf("linear.weight", _IN),
    "attention": ("mha", _GATED),
}


def _triangle_multiplication(left: str, right: str) -> Table:
    # "left" is the supplement's a for outgoing edges and its b for incoming ones.
    return {
        "layer_norm_input": ("layer_norm_in", _NORM),
        "left_projection": (f"linear_{left}_p", _LINEAR),
        "right_projection": (f"linear_{right}_p", _LINEAR),
        "left_gate": (f"linear_{left}_g", _LINEAR),
        "right_gate": (f"linear_{right}_g", _LINEAR),
        "center_layer_norm": ("layer_norm_out", _NORM),
        "output_projection": ("linear_z", _LINEAR),
        "gating_linear": ("linear_g", _LINEAR),
    }


_PAIR: Final[Table] = {
    "triangle_multiplication_outgoing": ("tri_mul_out", _triangle_multiplication("a", "b")),
    "triangle_multiplication_incoming": ("tri_mul_in", _triangle_multiplication("b", "a")),
    "triangle_attention_starting_node": ("tri_att_start", _TRIANGLE_ATTENTION),
    "triangle_attention_ending_node": ("tri_att_end", _TRIANGLE_ATTENTION),
    "pair_transition": ("pair_transition", _TRANSITION),
}
_ROW_ATTENTION: Final[Table] = {
    "query_norm": ("layer_norm_m", _NORM),
    "feat_2d_norm": ("layer_norm_z", _NORM),
    "//feat_2d_weights": Leaf("linear_z.weight", _IN),
    "attention": ("mha", _GATED),
}
_COLUMN_ATTENTION: Final[Table] = {
    "query_norm": ("layer_norm_m", _NORM),
    "attention": ("mha", _GATED),
}
_GLOBAL_ATTENTION: Final[Table] = {
    "query_norm": ("layer_norm_m", _NORM),
    "attention": ("global_attention", _GATED),
}
_OUTER_PRODUCT: Final[Table] = {
    "layer_norm_input": ("layer_norm", _NORM),
    "left_projection": ("linear_1", _LINEAR),
    "right_projection": ("linear_2", _LINEAR),
    "//output_w": Leaf("linear_out.weight", _OUT),
    "//output_b": Leaf("linear_out.bias", _FLAT),
}
_MSA: Final[Table] = {
    "msa_row_attention_with_pair_bias": ("msa_att_row", _ROW_ATTENTION),
    "msa_transition": ("msa_transition", _TRANSITION),
    "outer_product_mean": ("outer_product_mean", _OUTER_PRODUCT),
}
_EVOFORMER_MSA: Final[Table] = {
    **_MSA,
    "msa_column_attention": ("msa_att_col._msa_att", _COLUMN_ATTENTION),
}
_EXTRA_MSA: Final[Table] = {
    **_MSA,
    "msa_column_global_attention": ("msa_att_col", _GLOBAL_ATTENTION),
}
_TRUNK: Final[Table] = {
    "evoformer/preprocess_1d": ("input_embedder.linear_tf_m", _LINEAR),
    "evoformer/preprocess_msa": ("input_embedder.linear_msa_m", _LINEAR),
    "evoformer/left_single": ("input_embedder.linear_tf_z_i", _LINEAR),
    "evoformer/right_single": ("input_embedder.linear_tf_z_j", _LINEAR),
    "evoformer/pair_activiations": ("input_embedder.linear_relpos", _LINEAR),
    "evoformer/prev_pos_linear": ("recycling_embedder.linear", _LINEAR),
    "evoformer/prev_msa_first_row_norm": ("recycling_embedder.layer_norm_m", _NORM),
    "evoformer/prev_pair_norm": ("recycling_embedder.layer_norm_z", _NORM),
    "evoformer/extra_msa_activations": ("extra_msa_embedder.linear", _LINEAR),
    "evoformer/single_activations": ("evoformer.linear", _LINEAR),
}
_TEMPLATE: Final[Table] = {
    "template_single_embedding": ("template_single_embedder.linear_1", _LINEAR),
    "template_projection": ("template_single_embedder.linear_2", _LINEAR),
    "template_embedding/attention": ("template_pointwise_att.mha", _ATTENTION),
    "template_embedding/single_template_embedding/embedding2d": (
        "template_pair_embedder.linear",
        _LINEAR,
    ),
    "template_embedding/single_template_embedding/output_layer_norm": (
        "template_pair_stack.layer_norm",
        _NORM,
    ),
}
_TEMPLATE_STACK: Final = (
    "evoformer/template_embedding/single_template_embedding/template_pair_stack/"
    "__layer_stack_no_state/"
)
_POINT_ATTENTION: Final[Table] = {
    "q_scalar": ("linear_q", _LINEAR),
    "kv_scalar": ("linear_kv", _LINEAR),
    "q_point_local": ("linear_q_points.linear", _LINEAR),
    "kv_point_local": ("linear_kv_points.linear", _LINEAR),
    "//trainable_point_weights": Leaf("head_weights", _FLAT),
    "attention_2d": ("linear_b", _LINEAR),
    "output_projection": ("linear_out", _LINEAR),
}
_ANGLES: Final[Table] = {
    "input_projection": ("linear_in", _LINEAR),
    "input_projection_1": ("linear_initial", _LINEAR),
    "resblock1": ("layers.0.linear_1", _LINEAR),
    "resblock2": ("layers.0.linear_2", _LINEAR),
    "resblock1_1": ("layers.1.linear_1", _LINEAR),
    "resblock2_1": ("layers.1.linear_2", _LINEAR),
    "unnormalized_angles": ("linear_out", _LINEAR),
}
_STRUCTURE: Final[Table] = {
    "single_layer_norm": ("layer_norm_s", _NORM),
    "pair_layer_norm": ("layer_norm_z", _NORM),
    "initial_projection": ("linear_in", _LINEAR),
    "fold_iteration/attention_layer_norm": ("layer_norm_ipa", _NORM),
    "fold_iteration/transition": ("transition.layers.0.linear_1", _LINEAR),
    "fold_iteration/transition_1": ("transition.layers.0.linear_2", _LINEAR),
    "fold_iteration/transition_2": ("transition.layers.0.linear_3", _LINEAR),
    "fold_iteration/transition_layer_norm": ("transition.layer_norm", _NORM),
    "fold_iteration/affine_update": ("bb_update.linear", _LINEAR),
    "fold_iteration/invariant_point_attention": ("ipa", _POINT_ATTENTION),
    "fold_iteration/rigid_sidechain": ("angle_resnet", _ANGLES),
}
_PLDDT: Final[Table] = {
    "input_layer_norm": ("layer_norm", _NORM),
    "act_0": ("linear_1", _LINEAR),
    "act_1": ("linear_2", _LINEAR),
    "logits": ("linear_3", _LINEAR),
}
_LOGITS: Final[Table] = {"logits": ("linear", _LINEAR)}
_HALF_LOGITS: Final[Table] = {"half_logits": ("linear", _LINEAR)}
_HEADS: Final[Table] = {
    "predicted_lddt_head": ("plddt", _PLDDT),
    "distogram_head": ("distogram", _HALF_LOGITS),
    "masked_msa_head": ("masked_msa", _LOGITS),
    "experimentally_resolved_head": ("experimentally_resolved", _LOGITS),
}
_TM_HEAD: Final[Table] = {"predicted_aligned_error_head": ("tm", _LOGITS)}


def alphafold_entries(config: ModelConfig) -> list[ArrayMap]:
    """Every array that AlphaFold's file of this model has, and where each goes."""
    entries = [
        *_entries(_TRUNK, "", ""),
        *_entries(_STRUCTURE, "structure_module/", "structure_module."),
        *_entries(_HEADS, "", "aux_heads."),
    ]
    extra, evoformer = config.extra_msa.num_blocks, config.evoformer.num_blocks
    for table, scope, blocks, module, num_blocks in (
        (_EXTRA_MSA, "evoformer/extra_msa_stack/", "extra_msa_stack.blocks", "", extra),
        (_PAIR, "evoformer/extra_msa_stack/", "extra_msa_stack.blocks", "pair_stack.", extra),
        (_EVOFORMER_MSA, "evoformer/evoformer_iteration/", "evoformer.blocks", "", evoformer),
        (_PAIR, "evoformer/evoformer_iteration/", "evoformer.blocks", "pair_stack.", evoformer),
    ):
        entries += _stack(_entries(table, scope, module), blocks, num_blocks)
    if config.template.enabled:
        entries += _entries(_TEMPLATE, "evoformer/", "template_embedder.")
        entries += _stack(
            _entries(_PAIR, _TEMPLATE_STACK, ""),
            "template_embedder.template_pair_stack.blocks",
            config.template.num_blocks,
        )
    if config.pae_head:
        entries += _entries(_TM_HEAD, "", "aux_heads.")
    return entries


def read_alphafold(path: Path, config: ModelConfig) -> State:
    """Read a published ``.npz`` file under our names.

    Raises
    ------
    InputError
        If the file is missing or no ``.npz``, or its arrays are not those of the model: lists what
        is missing, unknown or of another number of blocks.
    """
    if archive_kind(path) == "torch":
        raise InputError(
            f"{path}: is a torch file, not an .npz file of arrays as AlphaFold's are. Rename it to "
            "end in .pt; for `scalefold weights import` its --format is openfold or mlperf"
        )
    num_values = sum(shape.numel() for shape in model_shapes(config).values())
    arrays = read_arrays(path, _MAX_VALUE_BYTES * num_values + _MAX_HEADER_BYTES)
    return alphafold_to_current(arrays, config, str(path))


def alphafold_to_current(
    arrays: Mapping[str, NDArray[Any]], config: ModelConfig, source: str
) -> State:
    """Translate AlphaFold's arrays; each is used exactly once, none is left over."""
    entries = alphafold_entries(config)
    expected = {entry.key for entry in entries}
    refuse_differences(source, sorted(expected - arrays.keys()), sorted(arrays.keys() - expected))
    state: State = {}
    for entry in entries:
        array = arrays[entry.key]
        if entry.stacked and array.shape[:1] != (len(entry.names),):
            raise InputError(
                f"{source}: {entry.key} has shape {array.shape}, the model has {len(entry.names)} "
                "blocks, which the first dimension must be"
            )
        if array.ndim == int(entry.stacked) and entry.layout is not Layout.FLAT:
            raise InputError(f"{source}: {entry.key} has shape {array.shape}, too few dimensions")
        for name, block in zip(entry.names, array if entry.stacked else [array], strict=True):
            state[name] = torch.from_numpy(np.ascontiguousarray(entry.layout.apply(block)))
    return state


def _stack(entries: Iterable[ArrayMap], blocks: str, num_blocks: int) -> Iterator[ArrayMap]:
    """Turn the entries of one block into those of all blocks."""
    for entry in entries:
        names = tuple(f"{blocks}.{i}.{entry.names[0]}" for i in range(num_blocks))
        yield ArrayMap(entry.key, names, entry.layout, stacked=True)


def _entries(table: Table, scope: str, prefix: str) -> Iterator[ArrayMap]:
    for key, target in table.items():
        if isinstance(target, Leaf):
            leaf_key = f"{PREFIX}{scope.rstrip('/')}{key}"
            yield ArrayMap(leaf_key, (prefix + target.name,), target.layout, stacked=False)
        else:
            name, inner = target
            yield from _entries(inner, f"{scope}{key}/", f"{prefix}{name}.")
