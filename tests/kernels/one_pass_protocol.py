"""Model of the barriers and places in shared memory of attention's backward in one pass.

`backward_one_pass.cu` runs on a GPU only, where a schedule that waits for ever may not come up.
Here its twelve warps that load, multiply and compute are generators with the kernel's names, which
may be interrupted wherever they yield, and copies arrive in any order. What is modelled:

- Barriers as PTX has them: a phase is complete when all arrivals and announced copies are there. A
  wait names its phase, but, as on a GPU, passes by that phase's parity. Passing for another phase
  is an error, and so is a schedule that ends with nobody able to go on.
- Places, each with a tag: which block or row lies there. A copy takes its place's tag away when it
  is asked for and brings the new one when it arrives; a warp that stores dS does so, too. Every
  reader checks the tag where it starts to read and where it has read: with products, which run by
  themselves, where `mma_wait` says that they are done.

Not modelled: the adders, and the counts that they wait for (`WARPS_STORED`, `written`); fences
between threads and TMA; numbers.

How many arrive at a barrier, how many barriers and places there are and when keys are asked for is
read from the source. Which waits there are is written here; a test compares them with the source.
"""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

Place = tuple[str, int]
"""What is kept there, and which of its places."""
Block = tuple[int, int]
"""Row and block of queries."""
Content = int | Block | None
"""A place's tag: a row, a block of one or, of dS, of all; None while it is being written."""


MULTIPLYING = 4
"""Warps of group 0."""
COMPUTING = 8
"""Warps of groups 1 and 2."""


class ProtocolError(Exception):
    """What would be a hang or wrong numbers on a GPU."""


@dataclass(frozen=True)
class Protocol:
    """What the model takes from the source."""

    blocks: int
    """Of 64 queries in a row."""
    places: int
    """Of blocks of queries and gradients."""
    arrivals: dict[str, int]
    """Of each kind of barrier."""
    barriers_read: int
    """Of kind `BLOCK_READ`, for consecutive blocks in turn."""
    keys_at: int
    """The block at which the next row's keys are asked for."""


def found(pattern: str, source: str) -> tuple[str, ...]:
    """What the pattern's groups match, in the one place where it does."""
    matches = list(re.finditer(pattern, source))
    if len(matches) != 1:
        raise LookupError(f"{len(matches)} matches of {pattern}")
    return matches[0].groups()


def protocol(source: str, blocks: int) -> Protocol:
    """Of the CUDA source, for 5 or 6 blocks."""
    six, five = found(r"PLACES = BLOCKS == 6 \? (\d+) : (\d+);", source)
    arrivals = re.findall(r"barrier_init\(([A-Z_]+)[^,]*, (\d+)\);", source)
    (barriers_read,) = found(r"i < (\d+); i\+\+\) barrier_init\(BLOCK_READ", source)
    (keys_at,) = found(r"if \(j == (\d+)\) load_keys\(i \+ 1\);", source)
    return Protocol(
        blocks=blocks,
        places=int(six if blocks == 6 else five),
        arrivals={name: int(count) for name, count in arrivals},
        barriers_read=int(barriers_read),
        keys_at=int(keys_at),
    )


@dataclass
class Barrier:
    name: str
    arrivals: int
    pending: int = field(init=False)
    copies: int = 0
    """Announced and not there yet, in the phase that is under way."""
    complete: int = 0
    """Phases."""

    def __post_init__(self) -> None:
        self.pending = self.arrivals

    def arrive(self, copies: int = 0) -> None:
        if not self.pending:
            raise ProtocolError(f"{self.name}: too many arrivals in phase {self.complete}")
        self.pending -= 1
        self.copies += copies
        self._turn()

    def copied(self) -> None:
        self.copies -= 1
        self._turn()

    def _turn(self) -> None:
        if not self.pending and not self.copies:
            self.complete += 1
            self.pending = self.arrivals


@dataclass(frozen=True)
class Wait:
    barrier: Barrier
    phase: int

    @property
    def over(self) -> bool:
        """By parity; that of phase -1 is complete from the start."""
        return self.barrier.complete & 1 != self.phase & 1

    def check(self) -> None:
        if self.barrier.complete != self.phase + 1:
            raise ProtocolError(
                f"{self.barrier.name}: passed for phase {self.phase} with {self.barrier.complete}"
            )


Steps = Iterator[Wait | None]
"""Of a warp, which may be interrupted at each, and goes on when the wait is over."""


@dataclass(frozen=True)
class Copy:
    full: Barrier
    place: Place
    content: Content


class Memory:
    """Shared memory of a program: barriers, places and the copies on their way."""

    def __init__(self, given: Protocol) -> None:
        def barriers(name: str, count: int) -> list[Barrier]:
            return [Barrier(f"{name} {n}", given.arrivals[name]) for n in range(count)]

        self.BLOCK_FULL = barriers("BLOCK_FULL", given.places)
        self.BLOCK_READ = barriers("BLOCK_READ", given.barriers_read)
        (self.KEYS_FULL,) = barriers("KEYS_FULL", 1)
        (self.DS_FULL,) = barriers("DS_FULL", 1)
        (self.DS_EMPTY,) = barriers("DS_EMPTY", 1)
        self.tags: dict[Place, Content] = {}
        self.copies: list[Copy] = []

    def copy(self, full: Barrier, contents: dict[Place, Content]) -> None:
        """Announce and ask for what goes to these places."""
        full.arrive(len(contents))
        for place, content in contents.items():
            self.tags[place] = None
            self.copies.append(Copy(full, place, content))

    def arrived(self, copy: Copy) -> None:
        self.copies.remove(copy)
        self.tags[copy.place] = copy.content
        copy.full.copied()

    def check(self, contents: dict[Place, Content]) -> None:
        """What is read is what the reader takes it for."""
        for place, content in contents.items():
            if self.tags.get(place) != content:
                raise ProtocolError(f"{place}: {self.tags.get(place)} instead of {content}")

    def read(self, contents: dict[Place, Content]) -> Steps:
        self.check(contents)
        yield None
        self.check(contents)


def wait(barrier: Barrier, phase: int) -> Steps:
    waiting = Wait(barrier, phase)
    yield waiting
    waiting.check()


class Multiplying:
    """A warp of group 0: dS times the keys. The first one loads for all groups."""

    def __init__(self, given: Protocol, memory: Memory, rows: int, loads: bool) -> None:
        self.given, self.memory, self.rows, self.loads = given, memory, rows, loads

    def load_keys(self, i: int) -> None:
        places = (("keys", i & 1), ("values", 0), ("added", i & 1))
        self.memory.copy(self.memory.KEYS_FULL, dict.fromkeys(places, i))

    def load_block(self, i: int, j: int) -> None:
        place, side = j % self.given.places, (i * self.given.blocks + j) & 1
        places = (("queries", place), ("grad", place), ("statistics", side), ("bias", side))
        self.memory.copy(self.memory.BLOCK_FULL[place], dict.fromkeys(places, (i, j)))

    def load_ahead(self, i: int, j: int) -> Steps:
        """The block after the next one, and the next row's keys, once their places are read."""
        blocks, reads = self.given.blocks, self.memory.BLOCK_READ
        block = i * blocks + j
        yield from wait(reads[block % len(reads)], block // len(reads))
        following, k = divmod(j + 2, blocks)
        if i + following < self.rows or k == 0:
            self.load_block(i + following, k)
        if j == self.given.keys_at:
            self.load_keys(i + 1)

    def steps(self) -> Steps:
        memory = self.memory
        if self.loads:
            self.load_keys(0)
            self.load_block(0, 0)
            self.load_block(0, 1)
        for i in range(self.rows):
            yield from wait(memory.KEYS_FULL, i)
            for j in range(self.given.blocks):
                block = i * self.given.blocks + j
                if self.loads:
                    yield from self.load_ahead(i, j)
                yield from wait(memory.DS_FULL, block)
                ds = {("dS", warp): block for warp in range(COMPUTING)}
                yield from memory.read({**ds, ("keys", i & 1): i})
                memory.DS_EMPTY.arrive()
                yield None


class Computing:
    """A warp of groups 1 and 2: weights, dS, and dK and dV of 16 keys."""

    def __init__(self, given: Protocol, memory: Memory, rows: int, warp: int) -> None:
        self.given, self.memory, self.rows, self.warp = given, memory, rows, warp
        self.products: list[dict[Place, Content]] = []
        """Operands in shared memory of those that are under way, group by group."""

    def mma_commit(self, operands: dict[Place, Content]) -> None:
        self.memory.check(operands)
        self.products.append(operands)

    def mma_wait(self, left: int) -> None:
        while len(self.products) > left:
            self.memory.check(self.products.pop(0))

    def load_keys(self, i: int) -> Steps:
        yield from wait(self.memory.KEYS_FULL, i)
        yield from self.memory.read({("values", 0): i, ("added", i & 1): i})

    def start(self, i: int, j: int) -> Steps:
        given = self.given
        place, side = j % given.places, (i * given.blocks + j) & 1
        phase = i * (given.blocks // given.places) + j // given.places
        yield from wait(self.memory.BLOCK_FULL[place], phase)
        yield from self.memory.read({("bias", side): (i, j), ("added", i & 1): i})
        block = dict.fromkeys((("statistics", side), ("queries", place), ("grad", place)), (i, j))
        self.mma_commit({**block, ("keys", i & 1): i})

    def steps(self) -> Steps:
        given, memory = self.given, self.memory
        yield from self.load_keys(0)
        yield from self.start(0, 0)
        for i in range(self.rows):
            for j in range(given.blocks):
                block = i * given.blocks + j
                place, side = j % given.places, block & 1
                yield None
                self.mma_wait(0)
                yield from memory.read({("statistics", side): (i, j), ("added", i & 1): i})
                memory.BLOCK_READ[block % len(memory.BLOCK_READ)].arrive()
                yield from wait(memory.DS_EMPTY, block - 1)
                memory.tags["dS", self.warp] = None
                yield None
                memory.tags["dS", self.warp] = block
                self.mma_commit({("grad", place): (i, j), ("queries", place): (i, j)})
                memory.DS_FULL.arrive()
                if j < given.blocks - 1:
                    yield from self.start(i, j + 1)
            yield from self.load_keys(i + 1)
            yield from self.start(i + 1, 0)
            yield None
            self.mma_wait(1)
        self.mma_wait(0)


def run(given: Protocol, rows: int, seed: int) -> None:
    """A program, to its end, under a schedule of priorities that change now and then.

    Of the warps that can go on, and TMA where there are copies, the one with the
    highest priority makes a step: so some are far behind, which a fair schedule hardly ever shows
    (Burckhardt et al., A randomized scheduler with probabilistic guarantees of finding bugs, ASPLOS
    2010).
    """
    draw = random.Random(seed)
    memory = Memory(given)
    warps: dict[str, Steps] = {}
    for warp in range(MULTIPLYING):
        warps[f"multiplying {warp}"] = Multiplying(given, memory, rows, loads=warp == 0).steps()
    for warp in range(COMPUTING):
        warps[f"computing {warp}"] = Computing(given, memory, rows, warp).steps()
    waits: dict[str, Wait | None] = dict.fromkeys(warps)
    everyone = [*warps, "copies"]
    priority = {name: draw.random() for name in everyone}
    change = draw.choice((0.003, 0.03, 0.3))

    while waits or memory.copies:
        if draw.random() < change:
            priority[draw.choice(everyone)] = draw.random()
        able = [name for name, waiting in waits.items() if waiting is None or waiting.over]
        if memory.copies:
            able.append("copies")
        if not able:
            stuck = (f"{name} for {w.barrier.name}, {w.phase}" for name, w in waits.items() if w)
            raise ProtocolError(f"all wait: {'; '.join(stuck)}")
        name = max(able, key=priority.__getitem__)
        if name == "copies":
            memory.arrived(draw.choice(memory.copies))
            continue
        try:
            waits[name] = next(warps[name])
        except StopIteration:
            del waits[name]
