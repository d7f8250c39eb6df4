"""Attention's backward in one pass neither hangs nor reads what is not there, in a model."""

import re
from pathlib import Path

import pytest
from tests.kernels.one_pass_protocol import Protocol, ProtocolError, protocol, run

import scalefold_kernels

SOURCE = (
    Path(scalefold_kernels.__file__).parent / "attention/hopper/backward_one_pass.cu"
).read_text()
ROWS = (1, 2, 5)

STATEMENTS = """
expect(KEYS_FULL
copy_tile(AT_KEYS + (i & 1) * KEY_BYTES
copy_tile(AT_VALUES
copy_bytes(AT_ADDED + (i & 1) * ADDED_BYTES
expect(full
copy_tile(AT_QUERIES + place * QUERY_BYTES
copy_tile(AT_GRAD + place * QUERY_BYTES
copy_bytes(AT_STATISTICS + side * STATISTICS_BYTES
copy_bytes(AT_BIAS + side * BIAS_BYTES
load_keys(0);
load_block(0, 0);
load_block(0, 1);
wait(KEYS_FULL, i & 1);
wait(BLOCK_READ + 8 * side, (block >> 1) & 1);
load_block(i + next, k);
load_keys(i + 1);
wait(DS_FULL, side);
mma_wait<0>();
arrive(DS_EMPTY);
wait(KEYS_FULL, i & 1);
wait(BLOCK_FULL + 8 * place, (i * (BLOCKS / PLACES) + j / PLACES) & 1);
load_keys(0);
start(0, 0);
mma_wait<0>();
arrive(BLOCK_READ + 8 * side);
wait(DS_EMPTY, side ^ 1);
arrive(DS_FULL);
start(i, j + 1);
load_keys(i + 1);
start(i + 1, 0);
mma_wait<1>();
mma_wait<0>();
"""
"""Waits, arrivals, copies and where these go, in the kernel's order, which is the model's, too."""


def faults(given: Protocol, seeds: range) -> list[str]:
    """What goes wrong in any of the schedules."""
    messages = []
    for rows in ROWS:
        for seed in seeds:
            try:
                run(given, rows, seed)
            except ProtocolError as error:
                messages.append(str(error))
    return messages


@pytest.mark.parametrize("blocks", [5, 6])
def test_no_schedule_hangs_or_reads_what_is_not_there(blocks: int) -> None:
    assert not faults(protocol(SOURCE, blocks), range(200))


@pytest.mark.parametrize("blocks", [5, 6])
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        # Warps may be a block apart: one barrier would count arrivals for two blocks.
        ("i < 2; i++) barrier_init(BLOCK_READ", "i < 1; i++) barrier_init(BLOCK_READ"),
        # Not all warps that multiply may have seen this row's keys.
        ("if (j == 2) load_keys", "if (j == 1) load_keys"),
        ("barrier_init(BLOCK_READ + 8 * i, 8)", "barrier_init(BLOCK_READ + 8 * i, 7)"),
        ("barrier_init(DS_FULL, 8)", "barrier_init(DS_FULL, 7)"),
        ("barrier_init(DS_EMPTY, 4)", "barrier_init(DS_EMPTY, 3)"),
    ],
)
def test_faults_in_the_source_are_found(right: str, wrong: str, blocks: int) -> None:
    assert SOURCE.count(right) == 1
    assert faults(protocol(SOURCE.replace(right, wrong), blocks), range(40))


def test_the_model_has_the_waits_and_copies_of_the_kernel() -> None:
    body = SOURCE.split("__syncthreads();")[1]
    whole = r"(?:wait|arrive|mma_wait<\d>|load_keys|load_block|start)\([^;]*;"
    destination = r"(?:expect|copy_tile|copy_bytes)\([^,]*"
    assert re.findall(rf"\b(?:{whole}|{destination})", body) == STATEMENTS.split("\n")[1:-1]
