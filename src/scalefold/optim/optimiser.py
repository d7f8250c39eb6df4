"""Adam over flat buffers, predicated on a finite flag.

Kingma and Ba 2015, with AlphaFold2's constants (Suppl. sec. 1.11.3). Everything that changes from
step to step (rate, count of updates, flag) is a tensor on the device: an update needs no
host synchronisation. `scalefold.optim.update` has the kernel that does the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scalefold.config.schema import OptimiserConfig


class Adam:
    """Adam's state and update.

    Parameters
    ----------
    like : Tensor, shape (P,), float32
        Flat weights whose layout and device the moments take.
    config : OptimiserConfig

    Attributes
    ----------
    first_moment, second_moment : Tensor, shape (P,), float32
    updates : Tensor, scalar, float64
        Updates applied so far; skipped steps do not count.
    """

    def __init__(self, like: Tensor, config: OptimiserConfig) -> None:
        self._beta1, self._beta2, self._eps = config.beta1, config.beta2, config.eps
        self.first_moment = torch.zeros_like(like)
        self.second_moment = torch.zeros_like(like)
        self.updates = torch.zeros((), dtype=torch.float64, device=like.device)

    @torch.no_grad()
    def update(self, weights: Tensor, gradient: Tensor, rate: Tensor, finite: Tensor) -> None:
        """Apply one update in place.

        Parameters
        ----------
        weights, gradient : Tensor, shape (P,), float32
            The gradient is used up: it serves as scratch space.
        rate : Tensor, scalar, float64
            Learning rate.
        finite : Tensor, scalar, bool
            Where false, weights and state stay exactly as they are.
        """
        active = finite.to(torch.float64)
        self.updates += active
        # Moments, by weights that are 0 where the step is skipped; 0 * NaN is NaN, so the
        # gradient is replaced, not scaled. max(1): before the first update the corrections are 0.
        gradient.copy_(torch.where(finite, gradient, 0.0))
        self.first_moment.lerp_(gradient, ((1.0 - self._beta1) * active).float())
        gradient.square_()
        self.second_moment.lerp_(gradient, ((1.0 - self._beta2) * active).float())

        updates = self.updates.clamp(min=1.0)
        correction1 = 1.0 - torch.pow(self._beta1, updates)
        correction2 = 1.0 - torch.pow(self._beta2, updates)
        denominator = torch.sqrt(self.second_moment, out=gradient)
        denominator.div_(correction2.sqrt()).add_(self._eps)
        step_size = rate * active / correction1
        weights.sub_(denominator.reciprocal_().mul_(self.first_moment).mul_(step_size))
