"""Copies of many tensors into one flat buffer."""

from scalefold_kernels.ops.gather.op import Gather as Gather
