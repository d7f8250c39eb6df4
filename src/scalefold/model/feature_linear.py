"""Linear map of features, few channels from many small parts.

Its own function, so that with the parts it is compiled as one: they are then written once, side
by side, in the type of the product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

_ALIGNMENT: Final = 8
"""Channels; 16 bytes in bfloat16. Products of rows of another size read number by number."""


def feature_linear(parts: Sequence[Tensor], linear: nn.Linear) -> Tensor:
    """Map parts (..., K_i), any type, which have K channels together, to (..., C).

    In the type of the weight (C, K). Channels are filled up with zeros to whole 16 bytes.
    """
    weight, fill = linear.weight, -linear.in_features % _ALIGNMENT
    x = torch.cat([part.to(weight.dtype) for part in parts], -1)
    if fill:
        x, weight = (functional.pad(t, (0, fill)) for t in (x, weight))
    return functional.linear(x, weight, linear.bias)
