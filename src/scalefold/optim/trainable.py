"""Which parameters are trained: all, or those of some modules.

The others are frozen: they ask for no gradient, so backward does not go below the first module
that is trained. Their places in the flat gradient stay zero. So Adam leaves these weights as they
are, to the last bit, and their average too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import nn

from scalefold.errors import InputError


def trained_names(names: Iterable[str], trainable: Sequence[str] | None) -> set[str]:
    """Return which of a model's parameters are trained.

    Parameters
    ----------
    trainable : sequence of str or None
        Modules or parameters by their dotted names, as ``evoformer.blocks.47``; None for all.

    Raises
    ------
    InputError
        One of them names no parameter.
    """
    names = list(names)
    if trainable is None:
        return set(names)
    trained: set[str] = set()
    for prefix in trainable:
        found = {name for name in names if name == prefix or name.startswith(f"{prefix}.")}
        if not found:
            modules = dict.fromkeys(name.partition(".")[0] for name in names)
            raise InputError(
                f"training.trainable: the model has no module or parameter {prefix!r}. Its modules "
                f"are {', '.join(modules)}; name one of these, or a part of one, such as "
                f"{names[0].rpartition('.')[0]}"
            )
        trained |= found
    return trained


def freeze_others(model: nn.Module, trainable: Sequence[str] | None) -> None:
    """Freeze all parameters but those that are trained, see `trained_names`."""
    trained = trained_names((name for name, _ in model.named_parameters()), trainable)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)
