"""Adam over flat buffers, predicated on a finite flag.

Kingma and Ba 2015, with AlphaFold2's constants (Suppl. sec. 1.11.3). Everything that changes from
step to step (rate, count of updates, flag) is a tensor on the device: an update needs no host
synchronisation. What works on whole buffers is one function, which torch.compile makes one kernel.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from scalefold.config.schema import OptimiserConfig
from scalefold.model.assembly import as_written
from scalefold.optim.on_host import on_device


class Adam:
    """Adam's state and update.

    Parameters
    ----------
    like : Tensor, shape (P,), float32
        Flat weights whose layout and device the moments take.
    compiled : callable
        Applied to the function that works on whole buffers.

    Attributes
    ----------
    first_moment, second_moment : Tensor, shape (P,), float32
    updates : Tensor, scalar, float64
        Updates applied so far; skipped steps do not count.
    """

    def __init__(
        self,
        like: Tensor,
        config: OptimiserConfig,
        compiled: Callable[[Callable[..., None]], Callable[..., None]] = as_written,
    ) -> None:
        self._beta1, self._beta2, self._eps = config.beta1, config.beta2, config.eps
        self._apply = compiled(_apply)
        self.first_moment = torch.zeros_like(like)
        self.second_moment = torch.zeros_like(like)
        self.updates = torch.zeros((), dtype=torch.float64, device=like.device)

    @torch.no_grad()
    def update(self, weights: Tensor, gradient: Tensor, rate: Tensor, finite: Tensor) -> None:
        """Apply one update in place.

        Parameters
        ----------
        weights, gradient : Tensor, shape (P,), float32
        rate : Tensor, scalar, float64
            Learning rate.
        finite : Tensor, scalar, bool
            Where false, weights and state stay exactly as they are.
        """
        active = finite.to(torch.float64)
        self.updates += active
        updates = self.updates.clamp(min=1.0)  # before the first, the corrections are 0
        correction1 = 1.0 - torch.pow(self._beta1, updates)
        correction2 = 1.0 - torch.pow(self._beta2, updates)
        numbers = (
            finite,
            ((1.0 - self._beta1) * active).float(),
            ((1.0 - self._beta2) * active).float(),
            correction2.sqrt().float(),
            (rate * active / correction1).float(),
            self._eps,
        )
        moments = [self.first_moment, self.second_moment]
        for part, (first, second) in on_device(moments, weights.device):
            self._apply(weights[part], gradient[part], first, second, *numbers)


def _apply(
    weights: Tensor,
    gradient: Tensor,
    first_moment: Tensor,
    second_moment: Tensor,
    finite: Tensor,
    one_minus_beta1: Tensor,
    one_minus_beta2: Tensor,
    correction2_root: Tensor,
    step_size: Tensor,
    eps: float,
) -> None:
    """Update weights and moments in place.

    ``one_minus_beta1`` and ``one_minus_beta2`` are the weights of the gradient in the moments. They
    and ``step_size`` are 0 where the step is skipped. 0 * NaN is NaN, so the gradient is replaced,
    not scaled.
    """
    gradient = torch.where(finite, gradient, 0.0)
    first_moment.lerp_(gradient, one_minus_beta1)
    second_moment.lerp_(gradient.square(), one_minus_beta2)
    denominator = second_moment.sqrt() / correction2_root + eps
    weights.sub_(denominator.reciprocal() * first_moment * step_size)
