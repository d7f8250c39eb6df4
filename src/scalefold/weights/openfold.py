"""OpenFold's weight files: current and first names; plain, averaged and Lightning layouts."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from scalefold.errors import InputError
from scalefold.weights.archive import archive_kind, check_is_weights, check_torch_archive
from scalefold.weights.matching import State

logger = logging.getLogger(__name__)

_BLOCK: Final = r"((?:evoformer|extra_msa_stack)\.blocks\.\d+\.)"

FIRST_VERSION: Final = (
    (re.compile(r"^template_angle_embedder\."), r"template_embedder.template_single_embedder."),
    (re.compile(r"^template_(?!embedder\.)"), r"template_embedder.template_"),
    (re.compile(_BLOCK + r"core\.(msa_transition|outer_product_mean)\."), r"\1\2."),
    (re.compile(_BLOCK + r"core\.(tri_\w+|pair_transition)\."), r"\1pair_stack.\2."),
    (re.compile(r"(\.ipa\.linear_k?[qv]+_points)\.(weight|bias)$"), r"\1.linear.\2"),
)
"""From OpenFold's first names (up to version 1.0) to the current ones; current names stay."""

_CONTAINERS: Final = (("ema", "params"), ("state_dict",), ("module",))
_PREFIXES: Final = ("module.", "model.")


def read_openfold(path: Path) -> State:
    """Read an OpenFold weight file (``.pt``, ``.ckpt``) under current names.

    Averaged weights are preferred where the file has both (``ema.params``, then Lightning's
    ``state_dict``, then DeepSpeed's ``module``); the prefixes ``module.`` and ``model.`` go.

    Raises
    ------
    InputError
        If the file is missing, not a torch file, holds no tensors, or would run code when read.
    """
    return rename(strip_prefixes(find_state(read_torch(path), path)), FIRST_VERSION)


def read_torch(path: Path) -> Any:
    """Load a torch file without running code from it."""
    if path.is_dir():
        raise InputError(
            f"{path}: is a folder, and weights are a file. Of a folder that DeepSpeed has written "
            "name the file mp_rank_00_model_states.pt, or what its zero_to_fp32.py makes of it"
        )
    if archive_kind(path) == "npz":
        raise InputError(
            f"{path}: is an .npz file of arrays, as AlphaFold's are, not a torch file: make one of "
            "it with `scalefold weights import --format alphafold`"
        )
    try:
        check_is_weights(path)
        has_checksums = check_torch_archive(path)
        tree = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise InputError(f"{path}: no such weight file") from None
    except InputError:
        raise
    # Bytes that are no pickle make torch's reader fail in any way: IndexError, KeyError, ...
    except Exception as error:
        raise InputError(
            f"{path}: cannot be read as a torch file of tensors ({type(error).__name__}: "
            f"{_reason(error)}). If it holds more than tensors, save its state dictionary alone "
            "in the code that wrote it; otherwise it is damaged"
        ) from None
    if not has_checksums:
        logger.warning(
            "%s: is in torch's format before 1.6, without checksums, so damaged numbers are not "
            "noticed: compare the file with its source",
            path,
        )
    return tree


def _reason(error: Exception) -> str:
    """The error of torch, without its advice to run the file's code anyway."""
    lines = [line.strip() for line in str(error).splitlines()] or [""]
    line = next((line for line in lines if "Unsupported" in line), lines[0])
    return line.removeprefix("WeightsUnpickler error: ").partition(". Please ")[0]


def find_state(tree: Any, path: Path) -> State:
    """The state dictionary inside of a loaded file."""
    for container in _CONTAINERS:
        inner = tree
        for key in container:
            inner = inner.get(key) if isinstance(inner, Mapping) else None
        if isinstance(inner, Mapping):
            logger.info("%s: using the weights under %r", path, ".".join(container))
            return _tensors(inner, path)
    return _tensors(tree, path)


def strip_prefixes(state: State) -> State:
    """Remove what wrappers put in front of all names."""
    for prefix in _PREFIXES:
        if state and all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def rename(state: Mapping[str, Tensor], rules: tuple[tuple[re.Pattern[str], str], ...]) -> State:
    """Apply all rules to each name, in order.

    Raises
    ------
    InputError
        If two names become one.
    """
    renamed: State = {}
    for name, value in state.items():
        new = name
        for pattern, replacement in rules:
            new = pattern.sub(replacement, new)
        if new in renamed:
            raise InputError(f"two tensors are called {new!r} under current names; one is {name!r}")
        renamed[new] = value
    return renamed


def _tensors(tree: Any, path: Path) -> State:
    if not isinstance(tree, Mapping) or not tree:
        raise InputError(
            f"{path}: expected a dictionary of tensors, found {type(tree).__name__}"
            + (" (empty)" if isinstance(tree, Mapping) else "")
        )
    wrong = [ascii(name) for name, value in tree.items() if not _is_named_tensor(name, value)]
    if wrong:
        raise InputError(
            f"{path}: expected a dictionary of tensors, but {', '.join(wrong[:10])} are none. "
            "Known layouts: a plain dictionary, ema.params, state_dict, module"
        )
    return {str(name): value for name, value in tree.items()}


def _is_named_tensor(name: object, value: object) -> bool:
    """Whether this is a name that can be printed, and a tensor with its values."""
    return (
        isinstance(name, str)
        and name.isprintable()
        and isinstance(value, Tensor)
        and value.layout is torch.strided
        and not value.is_nested
        and value.device.type == "cpu"
    )
