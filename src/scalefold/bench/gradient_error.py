"""Is a gradient in narrow numbers as good as another? Both are compared with one in float32.

Two computations in bfloat16 that round in another order differ by about as much as each is off from
the exact result. So the second one's error, not their difference, says whether it is right.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from scalefold.bench.measure import require_finite
from scalefold.features.contract import Features
from scalefold.optim.clipping import clip_scale
from scalefold.train.assemble import TrainingParts

_GAIN: Final = 0.5
"""Standard deviation of what a layer makes of normal numbers: updates are smaller than sums."""
_SMALL: Final = 0.1
"""Standard deviation of biases, and of scales around 1."""
_ROOM: Final = 1.25
"""An error is itself a random sum: as large again by a quarter is no worse."""
_FLOAT32: Final = 1e-4
"""Where both are in float32, of which a pass adds up tens of thousands of roundings of 2^-24."""


def step_gradient(parts: TrainingParts, passes: list[Features], clip_norm: float) -> Tensor:
    """Gradient of a sample, but for a factor that all models of a configuration share.

    At made-up weights, none of which is 0, as many initial ones are. Those that it had are lost.
    What clipping to ``clip_norm`` has changed is undone.
    """
    parameters, generator = parts.parameters, torch.Generator().manual_seed(1)
    for name, view in parameters.by_name(parameters.master).items():
        values = torch.randn(view.shape, generator=generator)
        if view.ndim > 1:
            view.copy_(_GAIN * view.shape[-1] ** -0.5 * values)
        else:
            view.copy_(_SMALL * values + ("layer_norm" in name and name.endswith("weight")))
    parameters.update_working_copy()
    parts.state.optimiser.first_moment.zero_()
    numbers = parts.step([passes], 0.0)
    require_finite(numbers)
    # Adam's first moment is a fixed part of the mean gradient.
    moment = next(tensor for name, tensor in parts.state.whole() if name == "first_moment")
    named = parameters.by_name(moment)
    gradient = torch.cat([named[name].flatten() for name in sorted(named)])
    return gradient / clip_scale(numbers.gradient_norm, clip_norm)


def agreement(one: Tensor, everybody: Tensor, exact: Tensor) -> dict[str, Any]:
    """Compare the gradients of one process and of all with an exact one, and with each other.

    Returns
    -------
    dict
        ``error_of_one``, ``error_of_all`` and ``apart``, by the norm of the exact one; ``agrees``,
        whether that of all processes is as good as that of one.
    """
    norm = float(exact.norm())
    pairs = {
        "error_of_one": (one, exact),
        "error_of_all": (everybody, exact),
        "apart": (everybody, one),
    }
    errors = {name: float((a - b).norm()) / norm for name, (a, b) in pairs.items()}
    agrees = errors["error_of_all"] <= _ROOM * errors["error_of_one"] + _FLOAT32
    return {name: float(f"{value:.3g}") for name, value in errors.items()} | {"agrees": agrees}
