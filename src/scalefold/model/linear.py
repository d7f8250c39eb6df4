"""Linear layers with AlphaFold2's initialisations (Suppl. sec. 1.11.4)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import nn

Init = Literal["lecun", "relu", "glorot", "gating", "normal", "final"]

# Standard deviation of a unit normal truncated at two: sampled values are scaled back by it.
_TRUNCATED_STD = 0.87962566103423978


class Linear(nn.Linear):
    """`torch.nn.Linear` with a named initialisation; biases start at zero.

    Parameters
    ----------
    init : str
        ``lecun``: truncated normal of variance 1 / fan-in. ``relu`` (He): 2 / fan-in. ``glorot``:
        uniform, fan average. ``gating``: weights 0, bias 1, so that a gate starts nearly open.
        ``normal``: normal of variance 1 / fan-in. ``final``: weights 0, so that a residual block
        starts as the identity.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, init: Init = "lecun"
    ) -> None:
        self._init = init
        super().__init__(in_features, out_features, bias)

    def reset_parameters(self) -> None:
        """Draw the weights again from torch's generator."""
        if self.weight.is_meta:  # torch would import its compiler to draw nothing
            return
        with torch.no_grad():
            match self._init:
                case "lecun":
                    self._truncated_normal(1.0)
                case "relu":
                    self._truncated_normal(2.0)
                case "glorot":
                    nn.init.xavier_uniform_(self.weight)
                case "normal":
                    self.weight.normal_(std=1 / math.sqrt(self.in_features))
                case "gating" | "final":
                    self.weight.zero_()
            if self.bias is not None:
                self.bias.fill_(1.0 if self._init == "gating" else 0.0)

    def _truncated_normal(self, scale: float) -> None:
        # By the inverse of the distribution function: torch's own trunc_normal_ draws otherwise in
        # other versions of torch, and the same seed should give the same weights.
        std = math.sqrt(scale / self.in_features) / _TRUNCATED_STD
        within = math.erf(2 / math.sqrt(2))
        self.weight.uniform_(-within, within).erfinv_().mul_(std * math.sqrt(2))
        self.weight.clamp_(-2 * std, 2 * std)
