"""From gradients to new weights, over flat buffers of all parameters."""
