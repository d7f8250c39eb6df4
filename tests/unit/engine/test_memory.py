"""The memory that a training pass needs is counted without making it."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from tests.unit.engine.test_activation_checkpointing import OTHERS
from torch.autograd.graph import saved_tensors_hooks

from scalefold.config import make_config
from scalefold.config.load import merge
from scalefold.engine import memory
from scalefold.engine.memory import choose_checkpointing, least_free_bytes
from scalefold.engine.pass_memory import (
    PassMemory,
    _count,
    empty_features,
    for_counting,
    pass_memory,
)
from scalefold.errors import InputError
from scalefold.loss.total import total_loss
from scalefold.model import AlphaFold, Previous
from scalefold.model.assembly import Assembly
from scalefold.ops import TORCH
from scalefold.ops.kernels import kernel_ops
from scalefold.parallel import ALONE, Ranks

CUDA = torch.device("cuda")


@pytest.fixture(scope="module")
def wide(micro_tree: dict[str, Any]) -> Any:
    """Wide enough that activations, not parameters, count."""
    sizes = {"crop_size": 32, "max_msa_clusters": 8, "max_extra_msa": 16}
    settings = {"features": sizes, "model": {"c_m": 16, "c_z": 16}, "training": {}}
    return make_config(merge(micro_tree, settings))


def test_counted_for_all_blocks_from_the_first_two(wide: Any) -> None:
    deep = for_counting(wide, 3)
    counted, _ = _count(deep, TORCH, "none", 1)
    assert pass_memory(deep, TORCH, "none").kept == counted.kept


def test_each_kind_keeps_less_than_the_one_before(wide: Any) -> None:
    deep = for_counting(wide, 12)
    needs = {kind: pass_memory(deep, OTHERS, kind) for kind in memory.MODES}
    kept = [needs[kind].kept for kind in memory.MODES]
    assert kept == sorted(kept, reverse=True)
    assert len(set(kept)) == len(kept)
    assert all(need.more > 0 for need in needs.values())


def test_offloaded_inputs_do_not_grow_with_depth(wide: Any) -> None:
    shallow, deep = (pass_memory(for_counting(wide, n), OTHERS, "offload") for n in (4, 40))
    assert shallow == deep


def test_kernels_can_be_counted(wide: Any) -> None:
    """Each has a fake implementation, and nothing beside it looks at values."""
    bf16 = make_config(merge(wide.model_dump(mode="json"), {"training": {"precision": "bf16"}}))
    with_kernels, plain = (pass_memory(bf16, ops, "none").kept for ops in (kernel_ops(), TORCH))
    assert with_kernels < plain


def test_agrees_with_what_autograd_holds(wide: Any) -> None:
    """The rest, outputs kept and constants not counted, is small."""
    config = for_counting(wide, 1)
    model, features = AlphaFold(config.model, Assembly(ops=TORCH)), empty_features(config)
    features = {name: torch.zeros_like(value) for name, value in features.items()}
    previous = Previous.zeros(1, config.features.crop_size, config.model, next(model.parameters()))
    inputs = [*model.parameters(), *model.buffers(), *features.values(), *previous]
    given = {t.untyped_storage().data_ptr() for t in inputs}
    saved: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        store = tensor.untyped_storage()
        if store.data_ptr() not in given:
            saved[store.data_ptr()] = store.nbytes()
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        outputs, _ = model(features, previous, model.embed_templates(features))
        loss, _ = total_loss(outputs, features, config.loss)
    kept = pass_memory(config, TORCH, "none").kept
    assert kept == pytest.approx(sum(saved.values()), rel=0.1)
    del loss


def test_auto_is_the_least_that_fits(
    wide: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "scalefold")
    config = make_config(
        merge(wide.model_dump(mode="json"), {"training": {"recomputation": "auto"}})
    )
    sizes = {"none": 30, "selective": 20, "full": 10, "offload": 5}
    monkeypatch.setattr(
        memory, "pass_memory", lambda config, ops, kind, degree: PassMemory(sizes[kind] * 2**30, 0)
    )
    chosen = {}
    for free in (40, 25, 15, 8, 5):
        chosen[free] = choose_checkpointing(config, TORCH, free * 2**30)
    assert chosen == {40: "none", 25: "selective", 15: "full", 8: "offload", 5: "offload"}
    assert "selective (memory needed: none 35.5 GiB, selective 24.0 GiB; free: 25.0 GiB)" in (
        caplog.text
    )


def test_without_memory_to_look_at_auto_is_none(wide: Any) -> None:
    def chosen(setting: str, free: int | None) -> str:
        tree = merge(wide.model_dump(mode="json"), {"training": {"recomputation": setting}})
        return choose_checkpointing(make_config(tree), TORCH, free)

    assert least_free_bytes(torch.device("cpu"), ALONE) is None
    assert chosen("auto", None) == "none"
    assert chosen("selective", 0) == "selective"


class Among(Ranks):
    size = 3

    def all_gather_object(self, value: Any) -> list[Any]:
        return [value + 5, value, value + 1]


def test_ranks_that_share_a_sample_decide_by_the_least_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 7)
    assert least_free_bytes(CUDA, Among()) == 7


def test_a_share_of_a_sample_needs_less_memory(wide: Any) -> None:
    kept = [pass_memory(wide, TORCH, "none", degree).kept for degree in (1, 2, 4)]
    # What is not shared is small here; gathered operands are whole on each rank.
    assert kept[1] < 0.75 * kept[0]
    assert kept[2] < 0.6 * kept[0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("device", [CUDA, torch.device("cuda", 0)])
def test_a_limit_is_what_is_free(device: torch.device) -> None:
    try:
        memory.limit_memory(2.0, device)
        assert memory.free_bytes(device) <= 2 * 2**30
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(3 * 2**30, dtype=torch.uint8, device=device)
        with pytest.raises(InputError, match="--memory-gib 100000"):
            memory.limit_memory(100_000, device)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, 0)
