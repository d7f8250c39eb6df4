"""Commands that predict: with several processes, all share each chain."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from scalefold.errors import InputError
from scalefold.launcher import Place, find_place

if TYPE_CHECKING:
    import torch

    from scalefold.predict.shared_chain import SharedPredictors


def check_one_node(place: Place | None) -> None:
    """Refuse processes on several nodes.

    Raises
    ------
    InputError
        If there are any.
    """
    if place is not None and place.local_size != place.world_size:
        raise InputError(
            f"{place.world_size} processes on several nodes, but those that share a chain are on "
            "one node: start torchrun there with --standalone"
        )


@contextlib.contextmanager
def leading(device: str) -> Iterator[SharedPredictors | None]:
    """Yield a maker of predictors on the first process; on the others None, after all work.

    Parameters
    ----------
    device : str
        The option ``--device``.
    """
    from scalefold.cli.device import torch_device
    from scalefold.parallel.launch import divided, joined
    from scalefold.predict.shared_chain import SharedPredictors

    place = find_place()
    if place is not None and place.world_size == 1:
        place = None

    def choose() -> torch.device:
        check_one_node(place)
        return torch_device(device, place)

    with joined(place, choose) as (everybody, chosen):
        mesh = divided(everybody, everybody.world.size, place, 1)
        predictors = SharedPredictors(chosen, mesh)
        if mesh.first:
            with predictors.led():
                yield predictors
        else:
            predictors.follow()
            yield None
