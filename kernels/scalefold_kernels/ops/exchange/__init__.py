"""Exchange of tensors between GPUs that can write to each other's memory."""

from scalefold_kernels.ops.exchange.op import Inbox, Parts, ctas, exchange

__all__ = ["Inbox", "Parts", "ctas", "exchange"]
