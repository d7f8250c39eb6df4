"""Numbers that the tests of the ops compute with."""

import torch


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal numbers in float64, the same for the same seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
