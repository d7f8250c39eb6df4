"""How a pass runs: precision, activation checkpointing, memory, compilation, CUDA graphs."""
