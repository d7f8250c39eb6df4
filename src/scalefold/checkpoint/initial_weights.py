"""The weights that a training run starts from, where these are not random."""

from __future__ import annotations

from scalefold.checkpoint.read import load_weights
from scalefold.config.initial_weights import check_initial_weights
from scalefold.config.schema import Config
from scalefold.errors import InputError
from scalefold.weights import State, check_state, guess_format, import_weights


def read_initial_weights(config: Config) -> State | None:
    """Read what ``training.initial_weights`` names: a checkpoint folder or a weight file.

    Returns
    -------
    dict of str to Tensor, or None
        Strictly the model's parameters, float32; None for random weights.

    Raises
    ------
    InputError
        It is not there, cannot be read, is damaged, or of another model.
    """
    path = config.training.initial_weights
    if path is None:
        return None
    check_initial_weights(config)
    try:
        if path.is_dir():
            return check_state(load_weights(path, "averaged"), config.model, str(path))
        return import_weights(path, guess_format(path), config.model)
    except InputError as error:
        raise InputError(f"training.initial_weights: {error}") from None
