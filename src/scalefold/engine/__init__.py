"""How a pass runs: precision, activation checkpointing, memory, compilation, CUDA graphs.

- Numbers: ``precision.py``.
- Memory: ``memory.py`` chooses what fits, by ``pass_memory.py``, which counts. Its choices are
  ``activation_checkpointing.py``, ``selective_checkpointing.py`` and ``offload.py``.
- Compilation: ``compilation.py`` by torch, ``compile_ahead.py`` of Triton kernels;
  ``shipped_kernels.py`` are those that an image brings.
- Launches: ``cuda_graphs.py``. ``garbage_collection.py`` keeps Python's away from the steps.
"""
