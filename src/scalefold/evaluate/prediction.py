"""Predict a whole chain: the recycling loop without gradients, in float32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from scalefold.config.schema import ModelConfig
from scalefold.errors import InputError, listed
from scalefold.features.contract import Features
from scalefold.model import AlphaFold, Outputs, Previous
from scalefold.train.checkpoint import Metadata, load_weights
from scalefold.train.precision import set_matrix_products
from scalefold.train.resume import config_differences
from scalefold.weights import check_state


def load_model(
    checkpoint: Path, metadata: Metadata, config: ModelConfig, device: torch.device
) -> AlphaFold:
    """Build the model with a checkpoint's averaged weights, in float32, for inference.

    Matrix products of the process are set to full float32, so that a checkpoint's scores do not
    depend on the precision that it was trained in.

    Parameters
    ----------
    checkpoint : Path
    metadata : Metadata
        Of the checkpoint.
    config : ModelConfig
    device : torch.device

    Raises
    ------
    InputError
        If the checkpoint is of another model (the first few differing keys are listed), damaged, or
        holds values that are not finite.
    """
    differences = [
        f"model.{key}: {before!r} in the checkpoint, {now!r} in the configuration"
        for key, before, now in config_differences(
            metadata.config["model"], config.model_dump(mode="json")
        )
    ]
    if differences:
        raise InputError(
            f"{checkpoint}: checkpoint of another model. What differs ({len(differences)}):"
            f"{listed(differences)}\nEvaluate it with the configuration that it was trained with"
        )
    set_matrix_products("fp32", device)
    model = AlphaFold(config)
    model.load_state_dict(
        check_state(load_weights(checkpoint, "averaged"), config, str(checkpoint))
    )
    return model.to(device).eval().requires_grad_(False)


@torch.inference_mode()
def predict(model: AlphaFold, passes: Sequence[Features], config: ModelConfig) -> Outputs:
    """Run all recycling passes and return the outputs of the last.

    Parameters
    ----------
    model : AlphaFold
    passes : sequence of dict
        Features of each pass, on the model's device; at least one.
    config : ModelConfig
        Of the model.
    """
    batch, num_res = passes[0]["aatype"].shape
    previous = Previous.zeros(batch, num_res, config, like=next(model.parameters()))
    for features in passes[:-1]:
        previous = model.recycle(features, previous)
    outputs, _ = model(passes[-1], previous)
    return outputs
