"""An interpreter of Gluon on the CPU, for tests: Triton's own knows no Gluon.

Kernels' Python functions run as they are, with numpy where they speak of Triton's language:
programs one after the other, the partitions of one by turns in a seeded order (`partitions`).
Layouts are carried and move nothing. What a GPU does by the way (`copies`, `products`) is done when
somebody waits for it, and not before; in every other program copies may end at any time. So results
are wrong, or a `KernelError` is raised, where one

- reads shared memory that nobody wrote (NaN), that a copy is writing, or that was stored unfenced;
- writes shared memory that a copy writes or reads, or that a product reads;
- uses a product's result without waiting for it;
- waits for what never comes (`DeadlockError`), or arrives where nobody is expected;
- ends with something under way, or touches global memory beside its tensors.

The threads of a partition are one here: a missing `thread_barrier` is not found. Nor is shared
memory given away: what lies under a barrier is not.
"""

from tests.kernels.gluon_interpreter.faults import DeadlockError, KernelError
from tests.kernels.gluon_interpreter.launch import interpreted

__all__ = ["DeadlockError", "KernelError", "interpreted"]
