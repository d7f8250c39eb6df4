"""Exchange of tensors between GPUs that can write to each other's memory."""

from scalefold_kernels.ops.exchange.op import Inbox as Inbox
from scalefold_kernels.ops.exchange.op import Parts as Parts
from scalefold_kernels.ops.exchange.op import ctas as ctas
from scalefold_kernels.ops.exchange.op import exchange as exchange
