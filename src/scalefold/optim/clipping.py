"""Mean gradient of a step, over the samples of all ranks, clipped.

AlphaFold2 clips each sample's gradient by its global norm before averaging (Suppl. sec. 1.11.3), so
that one bad sample cannot rule a batch; MLPerf clips the mean. In the second case gradients are on
their way to the other ranks while backward still runs; in the first a sample's norm must be known
before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from scalefold.config.schema import OptimiserConfig
from scalefold.optim.parameters import FlatParameters, flat_norm
from scalefold.optim.shared_gradient import SharedGradient
from scalefold.parallel import ALONE, Mesh, Pending
from scalefold.parallel.buckets import BUCKET_ELEMENTS, FilledBuckets, bucket_slices

_EPS = 1e-6
"""Added to the norm, as ``torch.nn.utils.clip_grad_norm_`` does."""


def clip_scale(norm: Tensor, clip_norm: float) -> Tensor:
    """Return the factor that clips a gradient of this norm."""
    return (clip_norm / (norm + _EPS)).clamp(max=1.0)


class ClippedMean:
    """Mean over samples and ranks of gradients, clipped by norm.

    Sums are in float32: over the ranks that share a sample, over the samples of a rank in their
    order, then over the ranks. So another number of ranks gives the same mean but for the order of
    the additions, and all ranks have the same mean to the last bit.

    Parameters
    ----------
    parameters : FlatParameters
        Whose gradients these are.
    config : OptimiserConfig
        ``clip_norm`` and ``clip_scope`` are used.
    mesh : Mesh
        Each rank has as many samples as the others.
    replicated : iterable of Module
        What ranks that share a sample compute alike.
    overlap : bool
        Send gradients while backward still runs, where the scope of clipping allows it. Not
        possible if backward is a captured graph.
    """

    def __init__(
        self,
        parameters: FlatParameters,
        config: OptimiserConfig,
        mesh: Mesh,
        replicated: Iterable[nn.Module] = (),
        *,
        overlap: bool = True,
    ) -> None:
        self._parameters = parameters
        self._shared = SharedGradient(parameters, replicated, mesh.dap)
        # One sum over all processes: sums of groups side by side could round differently.
        self._ranks = mesh.world if mesh.data.size > 1 else ALONE
        # The first rank of a sample sends the gradient that all of the sample's ranks have.
        self._sends_zero = mesh.data.size > 1 and mesh.dap.rank > 0
        self._clip_norm, self._per_sample = config.clip_norm, config.clip_scope == "sample"
        self._sum = torch.empty_like(parameters.master)
        self._empty = True
        self._sent: list[Pending] = []
        starts = [start for _, start in parameters.placed]
        self._buckets = bucket_slices(starts, self._sum.numel(), BUCKET_ELEMENTS)
        self._filled_buckets = None
        alone = mesh.dap.size == 1  # else a sample's gradient must be complete first
        if overlap and alone and mesh.data.size > 1 and not self._per_sample:
            self._filled_buckets = FilledBuckets(parameters.trained, self._buckets)

    @property
    def overlaps(self) -> bool:
        """Whether gradients are sent while backward runs: then hooks must see them arrive."""
        return self._filled_buckets is not None

    def start(self) -> None:
        """Begin a step."""
        self._empty = True
        self._sent = []

    @contextlib.contextmanager
    def overlapped(self, *, last: bool) -> Iterator[None]:
        """Around a sample's backward pass: what it completes of the ``last`` is sent at once."""
        if last and self._filled_buckets is not None:
            with self._filled_buckets.watch(self._add_and_send):
                yield
        else:
            yield

    def add(self, *, last: bool) -> Tensor:
        """Take in what a sample's backward pass left, the ``last`` of this rank or not.

        Returns
        -------
        Tensor, scalar, float32
            Norm of the sample's gradient.
        """
        if last and self._filled_buckets is not None:  # all is on its way
            return flat_norm(self._parameters.gradient)
        self._shared.complete()
        gradient = self._parameters.gradient
        norm = flat_norm(gradient)
        scale = clip_scale(norm, self._clip_norm) if self._per_sample else norm.new_ones(())
        if self._empty:
            torch.mul(gradient, scale, out=self._sum)
        else:
            self._sum.addcmul_(gradient, scale)
        self._empty = False
        if last:
            self.send()
        return norm

    def send(self) -> None:
        """Send what this rank has, to be summed up with the others'."""
        if self._empty or self._sends_zero:
            self._sum.zero_()
        for bucket in self._buckets:
            self._send(bucket)

    def finish(self, num_samples: int, mean_norm: Tensor) -> tuple[Tensor, Tensor]:
        """End a step.

        Parameters
        ----------
        num_samples : int
            Of all ranks.
        mean_norm : Tensor, scalar
            Mean of all samples' norms.

        Returns
        -------
        gradient : Tensor, shape (P,), float32
            This object's buffer: valid, and free to be overwritten, until the next `start`.
        norm : Tensor, scalar, float32
            Before clipping: the mean of the samples' norms, or the norm of the mean. Not finite
            where any sample's gradient is not.
        """
        for pending in self._sent:
            pending.wait()
        if self._per_sample:
            return self._sum.div_(num_samples), mean_norm
        norm = flat_norm(self._sum) / num_samples
        return self._sum.mul_(clip_scale(norm, self._clip_norm) / num_samples), norm

    def _add_and_send(self, bucket: slice) -> None:
        self._parameters.collect_gradient(bucket)
        total, gradient = self._sum[bucket], self._parameters.gradient[bucket]
        if self._empty:
            total.copy_(gradient)
        else:
            total += gradient
        self._send(bucket)

    def _send(self, bucket: slice) -> None:
        self._sent.append(self._ranks.all_reduce(self._sum[bucket]))
