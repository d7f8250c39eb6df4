"""All parameters of a model in flat buffers.

The model's parameters become views of one float32 buffer of master weights, their gradients views
of one gradient buffer. So the norm, clipping, Adam and averaging work on single tensors, and ranks
exchange slices of them. The model is not affected: names and shapes stay. Parameters that work in a
narrower type are views of a working copy instead, which is rewritten from the master weights after
each update.

Layout: ``[narrow parameters | float32 parameters]``, each parameter starts at a multiple of
`ALIGNMENT` elements; the gaps are zero, and stay zero, in every buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import torch
from torch import Tensor, nn

from scalefold.optim.gather import Gather, MakeGather, TorchGather
from scalefold.weights.matching import check_shapes

ALIGNMENT: Final = 64
"""Elements; 128 bytes in bfloat16, what vectorised loads and cache lines ask for."""

_NORM_ROW: Final = 4096


class FlatParameters:
    """Flat master weights and gradients of a model.

    Parameters
    ----------
    model : nn.Module
        Its parameters are float32, and become views of the buffers. Those that ask for no gradient
        are frozen: their part of `gradient` stays zero.
    narrow : callable, optional
        Tells by name which parameters work in ``narrow_dtype``; default none.
    gather : MakeGather
        What `backward` copies with.

    Attributes
    ----------
    master : Tensor, shape (P,), float32
        Master weights.
    gradient : Tensor, shape (P,), float32
        Gradients of the last backward pass, complete after `collect_gradient`.
    placed : list of (Parameter, int)
        The model's parameters and where they start in the buffers, by this.
    trained : list of (Parameter, int)
        Those of them that are not frozen.
    """

    def __init__(
        self,
        model: nn.Module,
        narrow: Callable[[str], bool] | None = None,
        narrow_dtype: torch.dtype = torch.bfloat16,
        gather: MakeGather = TorchGather,
    ) -> None:
        parameters = dict(model.named_parameters())
        extra = model.state_dict().keys() ^ parameters.keys()
        if extra:
            raise ValueError(
                f"the model's state is not its parameters alone: {sorted(extra)} (tied parameters "
                "and persistent buffers cannot be kept in flat buffers)"
            )
        wrong = {name: p.dtype for name, p in parameters.items() if p.dtype != torch.float32}
        if wrong:
            raise ValueError(f"parameters must be float32 before they are laid out, found {wrong}")
        self._shapes = {name: p.shape for name, p in parameters.items()}
        self._narrow = [name for name in parameters if narrow is not None and narrow(name)]
        wide = [name for name in parameters if narrow is None or not narrow(name)]
        self._offsets: dict[str, int] = {}
        end = self._place(self._narrow, 0)
        self._num_narrow = end
        end = self._place(wide, end)
        size = _round_up(end, _NORM_ROW)
        self.placed = sorted(
            ((parameters[name], start) for name, start in self._offsets.items()),
            key=lambda placed: placed[1],
        )
        self.trained = [placed for placed in self.placed if placed[0].requires_grad]

        device = next(iter(parameters.values())).device
        self.master = torch.zeros(size, device=device)
        self.gradient = torch.zeros(size, device=device)
        self._working = torch.zeros(self._num_narrow, dtype=narrow_dtype, device=device)
        self._working_gradient = torch.zeros_like(self._working)

        for name, view in self.by_name(self.master).items():
            view.copy_(parameters[name].detach())
        for name in self._narrow:
            parameters[name].data = self._view(self._working, name)
            parameters[name].grad = self._view(self._working_gradient, name)
        for name in wide:
            parameters[name].data = self._view(self.master, name)
            parameters[name].grad = self._view(self.gradient, name)
        trained = [name for name in self._narrow if parameters[name].requires_grad]
        self._num_trained_narrow = len(trained)
        self._gathers = [
            self._gather(gather, self._working_gradient, trained),
            self._gather(
                gather, self.gradient, [name for name in wide if parameters[name].requires_grad]
            ),
        ]
        self.update_working_copy()

    @property
    def num_parameters(self) -> int:
        """Number of parameters, without the gaps."""
        return sum(shape.numel() for shape in self._shapes.values())

    @property
    def num_trained(self) -> int:
        """Number of parameters that are not frozen."""
        return sum(parameter.numel() for parameter, _ in self.trained)

    def by_name(self, buffer: Tensor) -> dict[str, Tensor]:
        """Views of a buffer of this layout, by parameter name, in the model's order."""
        return {name: self._view(buffer, name) for name in self._shapes}

    def load(self, buffer: Tensor, values: Mapping[str, Tensor], source: str) -> None:
        """Copy named tensors into a buffer of this layout; ``source`` names them in errors.

        Raises
        ------
        InputError
            If names or shapes differ from the model's.
        """
        views = self.by_name(buffer)
        check_shapes({name: v.shape for name, v in values.items()}, self._shapes, source)
        for name, view in views.items():
            view.copy_(values[name])

    def spans(self, modules: Iterable[nn.Module]) -> list[slice]:
        """Parts of a buffer that hold the parameters of these modules alone, as few as possible."""
        wanted = {id(parameter) for module in modules for parameter in module.parameters()}
        ends = [*(start for _, start in self.placed[1:]), self.master.numel()]
        spans: list[slice] = []
        for (parameter, start), end in zip(self.placed, ends, strict=True):
            if id(parameter) not in wanted:
                continue
            if spans and spans[-1].stop == start:
                start = spans.pop().start
            spans.append(slice(start, end))
        return spans

    def update_working_copy(self) -> None:
        """Bring the working copy up to date with the master weights."""
        self._working.copy_(self.master[: self._num_narrow])

    def zero_gradient(self) -> None:
        """Clear what the last backward pass left."""
        self.gradient.zero_()
        self._working_gradient.zero_()

    def backward_with_hooks(self, loss: Tensor) -> None:
        """Differentiate a loss; hooks on the parameters see each gradient as it arrives."""
        self.zero_gradient()
        loss.backward()

    def backward(self, loss: Tensor) -> None:
        """Differentiate a loss, with a few large copies instead of thousands of small additions.

        The same gradients as `backward_with_hooks`, but no hook of a parameter is called.
        """
        parameters = [parameter for parameter, _ in self.trained]
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        # A loss may not depend on a parameter.
        complete = [_or_zero(g, p) for g, p in zip(gradients, parameters, strict=True)]
        narrow, wide = self._gathers
        narrow(complete[: self._num_trained_narrow])
        wide(complete[self._num_trained_narrow :])

    def collect_gradient(self, part: slice = slice(None)) -> None:
        """Complete `gradient`, or a part of it, after backward: widen what is narrow."""
        start, stop, _ = part.indices(self._num_narrow)
        if start < stop:
            self.gradient[start:stop].copy_(self._working_gradient[start:stop])

    def _gather(self, make: MakeGather, buffer: Tensor, names: list[str]) -> Gather:
        return make(
            buffer,
            [self._offsets[name] for name in names],
            [self._shapes[name].numel() for name in names],
        )

    def _place(self, names: list[str], start: int) -> int:
        for name in names:
            self._offsets[name] = start
            start = _round_up(start + self._shapes[name].numel(), ALIGNMENT)
        return start

    def _view(self, buffer: Tensor, name: str) -> Tensor:
        shape, offset = self._shapes[name], self._offsets[name]
        return buffer[offset : offset + shape.numel()].view(shape)


def flat_norm(buffer: Tensor) -> Tensor:
    """Euclidean norm of a flat buffer: a float32 scalar on its device, without a sync.

    Row by row first: a running float32 sum over 93 million squares would lose digits.
    """
    return torch.linalg.vector_norm(
        torch.linalg.vector_norm(buffer.view(-1, _NORM_ROW), dim=1), dtype=torch.float32
    )


def _or_zero(gradient: Tensor | None, parameter: nn.Parameter) -> Tensor:
    if gradient is not None:
        return gradient
    assert parameter.grad is not None  # a view of a buffer
    return parameter.grad.zero_()


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
