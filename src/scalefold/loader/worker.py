"""Worker processes that prepare samples.

Each worker has a pipe of its own, so that a death is noticed at once (the pipe closes) and is known
to belong to the sample in hand, and so that workers end by themselves when their parent dies.
Results travel through the pipe, not through shared memory, which containers often have too little
of. Each worker is served by one thread of the parent.
"""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import NamedTuple

import torch

from scalefold.config.schema import FeaturesConfig
from scalefold.errors import InputError
from scalefold.features.contract import Features
from scalefold.loader.prepare import SampleError, SampleReader, SampleTask, prepare
from scalefold.loader.transfer import receive_passes, send_passes

_CLOSE_SECONDS = 5.0


class _Failure(NamedTuple):
    """An exception of a worker, as text: not every exception survives pickling."""

    is_input_error: bool
    message: str
    trace: str


class _Worker(NamedTuple):
    process: BaseProcess
    connection: Connection


class WorkerPool:
    """Prepares samples in worker processes.

    Parameters
    ----------
    num_workers : int
    reader : SampleReader
        Pickled to each worker once.
    config : FeaturesConfig
    seed : int
        Seed of the run.
    """

    def __init__(
        self, num_workers: int, reader: SampleReader, config: FeaturesConfig, seed: int
    ) -> None:
        # spawn: a fork would copy the locks and CUDA state of a process that already has threads
        context = multiprocessing.get_context("spawn")
        self._workers: list[_Worker] = []
        self._death: SampleError | None = None
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        self._threads = ThreadPoolExecutor(num_workers, thread_name_prefix="scalefold-loader")
        try:
            for number in range(num_workers):
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=run_worker,
                    args=(theirs, reader, config, seed),
                    name=f"scalefold-loader-{number}",
                    daemon=True,
                )
                process.start()
                theirs.close()
                self._workers.append(_Worker(process, ours))
                self._idle.put(self._workers[-1])
        except BaseException:
            self.close()
            raise

    def submit(self, task: SampleTask) -> Future[list[Features]]:
        """Queue a task; tasks start in the order of submission.

        The future raises InputError or SampleError, naming the chain, also when the worker dies.
        """
        return self._threads.submit(self._serve, task)

    def close(self) -> None:
        """End all workers, whatever they are doing; can be called again."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join(_CLOSE_SECONDS)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        # the threads see the pipes of the dead end, and finish
        self._threads.shutdown(wait=True)
        for worker in self._workers:
            worker.connection.close()

    def _serve(self, task: SampleTask) -> list[Features]:
        # There are as many threads as workers, dead ones included, so this never blocks.
        worker = self._idle.get()
        if self._death is not None:
            # Tasks behind the one that a worker died of tell of that one, not of themselves.
            self._idle.put(worker)
            raise SampleError(str(self._death)) from self._death
        try:
            worker.connection.send(task)
            reply = worker.connection.recv()
            if not isinstance(reply, _Failure):
                return receive_passes(worker.connection, reply)
        except (EOFError, OSError) as error:
            worker.process.join(_CLOSE_SECONDS)
            self._death = SampleError(
                f"{task}: the loader's worker process {worker.process.pid} died while preparing "
                f"this sample (exit code {worker.process.exitcode}; -9 is what the kernel does "
                "when memory runs out: set training.loader_workers lower)"
            )
            raise self._death from error
        finally:
            self._idle.put(worker)
        error_type = InputError if reply.is_input_error else SampleError
        failure = error_type(reply.message)
        failure.add_note(f"In worker process {worker.process.pid}:\n{reply.trace}")
        raise failure


def run_worker(
    connection: Connection, reader: SampleReader, config: FeaturesConfig, seed: int
) -> None:
    """Body of a worker process: prepare samples until the pipe closes."""
    # Ctrl-C reaches the whole process group; it is for the parent to end its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        failure = None
        try:
            passes = prepare(reader, config, seed, task)
        except Exception as error:
            failure = _Failure(isinstance(error, InputError), str(error), traceback.format_exc())
        try:
            if failure is None:
                send_passes(connection, passes)
            else:
                connection.send(failure)
        except BrokenPipeError:  # the parent is gone
            return
