"""Worker processes that prepare samples.

Each worker has its own pipe. If the worker dies the pipe closes, which is noticed at once. If the
parent dies the worker sees that and ends. Results travel through the pipe, not through shared
memory, which containers often have too little of.

A worker reads several samples at once, in threads, so that one that waits for storage delays no
other. When a worker dies, a new process prepares its unfinished samples again, one at a time. If
that one dies too, the sample that killed both is known.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Final, NamedTuple

import torch

from scalefold.errors import InputError
from scalefold.loader.prepare import Preparation, SampleError, SampleTask
from scalefold.loader.tensor_block import Message, TensorBlock, receive, send

TASKS_PER_WORKER: Final = 8
"""Samples that a worker reads at once. Reads that wait take no processor."""

_CLOSE_SECONDS: Final = 5.0
_DEATHS: Final = 2  # of workers, until a sample is given up


class _Failure(NamedTuple):
    """An exception of a worker, as text: not every exception survives pickling."""

    is_input_error: bool
    message: str
    trace: str


@dataclass(eq=False)
class _Job:
    """A task in hand, and how many workers have died with it."""

    task: SampleTask
    result: Future[TensorBlock] = field(default_factory=Future)
    deaths: int = 0


@dataclass(eq=False)
class _Worker:
    """A place for a worker process; all is guarded by the pool's lock.

    Attributes
    ----------
    in_hand : dict of int to _Job
        By draw.
    suspects : deque of _Job
        Were in hand when a process died; done alone, one after another.
    connection : Connection or None
        To that process; None when it has ended.
    """

    number: int
    in_hand: dict[int, _Job] = field(default_factory=dict)
    suspects: deque[_Job] = field(default_factory=deque)
    process: BaseProcess | None = None
    connection: Connection | None = None


class WorkerPool:
    """Prepares samples in worker processes.

    Parameters
    ----------
    preparation : Preparation
        Pickled to each worker.
    """

    def __init__(self, num_workers: int, preparation: Preparation) -> None:
        self.capacity = num_workers * TASKS_PER_WORKER
        self._preparation = preparation
        # spawn: a fork would copy the locks and CUDA state of a process that already has threads
        self._context = multiprocessing.get_context("spawn")
        self._lock = threading.RLock()
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._workers = [_Worker(number) for number in range(num_workers)]
        try:
            with self._lock:
                for worker in self._workers:
                    self._start(worker)
        except BaseException:
            self.close()
            raise

    def submit(self, task: SampleTask) -> Future[TensorBlock]:
        """Have a sample prepared; at most ``capacity`` are in hand at a time.

        The future raises InputError or SampleError, naming the chain; also when worker processes
        die of this sample, twice, or no process can be started in place of one that died.
        """
        job = _Job(task)
        with self._lock:
            worker = min(self._workers, key=_load)
            if _under_suspicion(worker):
                worker.suspects.append(job)  # waits there, and is done alone
            else:
                self._send(worker, job)
        return job.result

    def close(self) -> None:
        """End all workers, whatever they are doing; can be called again.

        A process that a file system holds cannot be ended, and is not waited for long.
        """
        with self._lock:
            self._closed = True
            processes = [w.process for w in self._workers if w.process is not None]
            connections = [w.connection for w in self._workers if w.connection is not None]
        for process in processes:
            process.terminate()
        _join(processes)
        for process in processes:
            if process.is_alive():
                process.kill()
        _join(processes)
        # the threads see the pipes of the dead end, and finish
        _join(self._threads)
        for connection in connections:
            connection.close()

    def _start(self, worker: _Worker) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=run_worker,
            args=(theirs, self._preparation),
            name=f"scalefold-loader-{worker.number}",
            daemon=True,
        )
        process.start()
        theirs.close()
        worker.process, worker.connection = process, ours
        thread = threading.Thread(
            target=self._receive, args=(worker, ours), name=process.name, daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def _send(self, worker: _Worker, job: _Job) -> None:
        if worker.connection is None:
            try:
                self._start(worker)
            except OSError as error:  # no memory, or no process left, for another one
                dead = worker.process
                assert dead is not None
                job.result.set_exception(
                    SampleError(
                        f"{job.task}: process {dead.pid} of the loader ended with exit code "
                        f"{dead.exitcode}, and no other could be started: {error} (set "
                        "training.loader_workers lower)"
                    )
                )
                return
        worker.in_hand[job.task.draw] = job
        assert worker.connection is not None
        with contextlib.suppress(OSError):  # of a dead process: its thread will see that
            worker.connection.send(job.task)

    def _receive(self, worker: _Worker, connection: Connection) -> None:
        """Body of a thread: pass on the results of one process until it ends."""
        try:
            while True:
                draw, reply = connection.recv()
                if not isinstance(reply, _Failure):
                    reply = receive(connection, reply)
                with self._lock:
                    job = worker.in_hand.pop(draw)
                    self._next_suspect(worker)
                if isinstance(reply, TensorBlock):
                    job.result.set_result(reply)
                else:
                    job.result.set_exception(_exception(reply, worker))
        except Exception:  # its end; or it sent what cannot be read, and no more of it can be
            with self._lock:
                if not self._closed:
                    self._bury(worker)

    def _bury(self, worker: _Worker) -> None:
        """Start a dead process's tasks again, or give up the one that killed it."""
        process, connection = worker.process, worker.connection
        assert process is not None
        assert connection is not None
        connection.close()
        process.join(_CLOSE_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
        worker.connection = None
        jobs, worker.in_hand = list(worker.in_hand.values()), {}
        for job in jobs:
            job.deaths += 1
        if len(jobs) == 1 and jobs[0].deaths >= _DEATHS:
            (guilty,) = jobs
            guilty.result.set_exception(
                SampleError(
                    f"{guilty.task}: {guilty.deaths} worker processes of the loader died while "
                    f"preparing this sample, the last, {process.pid}, with exit code "
                    f"{process.exitcode} (-9 is what the kernel does when memory runs out: set "
                    "training.loader_workers lower)"
                )
            )
            jobs = []
        worker.suspects.extendleft(reversed(jobs))
        self._next_suspect(worker)

    def _next_suspect(self, worker: _Worker) -> None:
        while worker.suspects and not worker.in_hand:  # not in hand either if no process started
            self._send(worker, worker.suspects.popleft())


def _join(ending: Sequence[BaseProcess | threading.Thread]) -> None:
    """Wait for the end of all, for some seconds in all."""
    deadline = time.monotonic() + _CLOSE_SECONDS
    for each in ending:
        each.join(max(0.0, deadline - time.monotonic()))


def _under_suspicion(worker: _Worker) -> bool:
    return bool(worker.suspects) or any(job.deaths for job in worker.in_hand.values())


def _load(worker: _Worker) -> tuple[bool, int]:
    """Order of workers for a new task: those under suspicion last, then by what they have."""
    return _under_suspicion(worker), len(worker.in_hand) + len(worker.suspects)


def _exception(failure: _Failure, worker: _Worker) -> Exception:
    exception = (InputError if failure.is_input_error else SampleError)(failure.message)
    exception.add_note(f"In worker process {worker.number}:\n{failure.trace}")
    return exception


def run_worker(connection: Connection, preparation: Preparation) -> None:
    """Body of a worker process: prepare samples until the pipe closes."""
    # Ctrl-C and the end of a terminal reach the whole process group; it is for the parent to end
    # its workers.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    computing, sending = threading.Lock(), threading.Lock()

    def work(task: SampleTask) -> None:
        reply: Message | _Failure
        try:
            inputs = preparation.read(task)
            with computing:  # one after another: all at once would all be late
                reply = Message.of(preparation.make(task, inputs))
        except Exception as error:
            reply = _Failure(isinstance(error, InputError), str(error), traceback.format_exc())
        try:
            with sending:
                if isinstance(reply, _Failure):
                    connection.send((task.draw, reply))
                else:
                    send(connection, task.draw, reply)
        except OSError:
            os._exit(0)  # the parent is gone
        except BaseException:
            # Nothing that is sent now would be understood; the parent notices the end.
            traceback.print_exc()
            os._exit(1)

    threads = ThreadPoolExecutor(TASKS_PER_WORKER)
    while True:
        try:
            task = connection.recv()
        except (EOFError, OSError):
            os._exit(0)  # nobody is left to wait for what is in hand, which may take long
        threads.submit(work, task)
