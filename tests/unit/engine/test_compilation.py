"""What is compiled is chosen at assembly, and is one graph a function."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from scalefold.config import make_config
from scalefold.config.load import merge
from scalefold.engine import compilation
from scalefold.engine.compilation import choose_compilation
from scalefold.errors import InputError
from scalefold.loader.loader import TrainingLoader
from scalefold.model import Assembly
from scalefold.model.assembly import as_written
from scalefold.shards.reader import ShardReader
from scalefold.train.assemble import assemble
from scalefold.train.sample import loss_and_scores

CPU = torch.device("cpu")


def test_without_a_gpu_functions_stay_as_written() -> None:
    for setting in ("auto", False):
        assert choose_compilation(setting, CPU)(loss_and_scores) is loss_and_scores
    assert Assembly().compiled is as_written


def test_compilation_where_it_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match=r"training\.compile.*cpu"):
        choose_compilation(True, CPU)


def test_what_is_compiled_can_be_traced_whole_and_means_the_same(
    micro_tree: dict[str, Any], shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traced as torch.compile does, the operations themselves run: the same numbers to rounding.

    Each function is compiled once with gradients and once without, however many layers there are;
    templates are embedded with gradients alone.
    """
    every_term = {"violation": 1.0, "experimentally_resolved": 0.01, "pae": 0.1}
    changes = {
        "loss": every_term,
        "model": {"pae_head": True},
        "training": {"global_batch_size": 1},
    }
    config = make_config(merge(micro_tree, changes))
    eager = assemble(config, CPU)
    graphs: Counter[str] = Counter()

    def traced(function: Any, *, options: dict[str, Any], **how: Any) -> Any:
        def backend(graph: torch.fx.GraphModule, _: object) -> Any:
            graphs[function.__name__] += 1
            return graph.forward

        return compile_(function, backend=backend, **how)

    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", traced)
    monkeypatch.setattr(compilation, "why_not", lambda device: None)
    config = make_config(merge(config.model_dump(mode="json"), {"training": {"compile": True}}))
    compiled = assemble(config, CPU)
    with TrainingLoader(ShardReader(shards), config, "cpu") as loader:
        samples = next(batch.samples for batch in loader if batch.recycling == 1)
    ours, reference = compiled.step(samples, 1e-3), eager.step(samples, 1e-3)
    assert bool(reference.finite)
    assert ours.names == reference.names
    # A float32 number is summed up of thousands: ten units of its last place, no more.
    close = {"rtol": 10 * torch.finfo(torch.float32).eps, "atol": 1e-6}
    torch.testing.assert_close(ours.per_sample, reference.per_sample, **close)
    torch.testing.assert_close(ours.gradient_norm, reference.gradient_norm, **close)
    embedders = {"_embed": 7, "_add": 2}
    assert (
        graphs
        == {"_layer": 2, "_build": 2, "loss_and_scores": 1, "_apply": 1, "_factor": 4} | embedders
    )
