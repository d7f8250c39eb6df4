"""How many operations the small parts take: on a GPU each is a launch of some two microseconds."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from scalefold.model.assembly import Assembly
from scalefold.model.structure import StructureModule


class Operations(TorchDispatchMode):
    """Counts the operations that read or write a tensor: all but views and bare allocations."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.count += not (func.is_view or "empty" in func.name())
        return func(*args, **(kwargs or {}))


def operations(work: Callable[[], Any]) -> int:
    with Operations() as operations:
        work()
    return operations.count


@pytest.fixture
def counts(config) -> Callable[[int], dict[str, int]]:
    """Operations of a structure module with some number of layers, by what is done."""

    def count(num_layers: int) -> dict[str, int]:
        section = config.structure.model_copy(update={"num_layers": num_layers})
        module = StructureModule(section, config.c_s, config.c_z, Assembly()).train()
        s, z = torch.randn(1, 6, config.c_s), torch.randn(1, 6, 6, config.c_z)
        arguments = s.requires_grad_(), z.requires_grad_(), torch.zeros(1, 6).long()
        rest = torch.ones(1, 6), torch.tensor([3])
        loss: list[Tensor] = []

        def forward() -> None:
            structure = module(*arguments, *rest)
            loss.append(structure.positions.sum() + structure.unnormalized_angles.sum())

        def recycle() -> None:
            with torch.no_grad():
                module.last_layer(*arguments, *rest)

        return {
            "forward": operations(forward),
            "backward": operations(lambda: loss[0].backward()),
            "recycle": operations(recycle),
        }

    return count


# What it takes with torch 2.13, and a tenth for what other versions do otherwise.
LAYER = {"forward": 72, "backward": 155, "recycle": 72}
REST = {"forward": 226, "backward": 111, "recycle": 223}


def test_the_structure_module_takes_few_operations(counts) -> None:
    two, four = counts(2), counts(4)
    for name, limit in LAYER.items():
        of_layer = (four[name] - two[name]) / 2
        rest = two[name] - 2 * of_layer
        assert of_layer <= 1.1 * limit, f"{name} of a layer"
        assert rest <= 1.1 * REST[name], f"{name} of everything but the layers"
