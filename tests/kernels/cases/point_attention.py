"""Configurations that the offline compilation checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from tests.kernels.offline.case import CompileCase, recorded
from torch import Tensor

from scalefold_kernels.point_attention import launch
from scalefold_kernels.point_attention.arguments import Arguments
from scalefold_kernels.point_attention.launch import Grads, Results
from scalefold_kernels.tiles import configured, overridden, read_table

_MODEL = {"B": 1, "N": 256, "H": 12, "C": 16, "P": 4, "V": 8, "Z": 128}


def compile_cases() -> list[CompileCase]:
    """Every kernel at the model's sizes, with each of its tiles."""
    a = _arguments(**_MODEL)
    pairs = a.q.new_empty(*a.q.shape[:3], _MODEL["Z"])
    logits, norms = a.pair_logits, a.pair_logits[..., :2].contiguous()
    out, points = a.v.new_empty(a.v.shape), a.u.new_empty(a.u.shape)
    results, grads = Results(out, points, pairs, logits, norms), Grads(out, points, pairs)
    calls: dict[str, Callable[[], object]] = {
        "forward": lambda: launch.attend(a, results),
        "pair_forward": lambda: launch.attend_to_pairs(a, results),
        "pair_backward": lambda: launch.pairs_backward(a, results, grads, a.pair),
        "pair_gradient": lambda: launch.pair_gradient([pairs] * 8, [logits] * 8, [norms] * 8),
        "queries_backward": lambda: launch.queries_backward(a, results, grads, logits, norms, a),
        "keys_backward": lambda: launch.keys_backward(a, results, grads, a),
    }
    return [case for name, call in calls.items() for case in _cases(name, call)]


def _cases(name: str, call: Callable[[], object]) -> Iterator[CompileCase]:
    table = f"point_attention_{name}"
    default = [(arch, read_table(table)["default"]) for arch in ("sm_80", "sm_90")]
    for arch, sizes in [*default, *((arch, sizes) for arch, _, sizes in configured(table))]:
        with overridden() as tiles:
            tiles.force(table, **sizes)
            described = f"{table} {arch} " + " ".join(f"{k}={v}" for k, v in sizes.items())
            yield recorded(launch, f"{name}_kernel", call, described, arch)


def _arguments(*, B: int, N: int, H: int, C: int, P: int, V: int, Z: int) -> Arguments:
    """Tensors without memory, features and points as parts of larger ones, as in the model."""

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, device="meta")

    projected, points = empty(B, N, 6 * H * C), empty(B, N, H, 3 * (2 * P + V))
    q = projected[..., : H * C].unflatten(-1, (H, C))
    k, v = projected[..., H * C : 3 * H * C].unflatten(-1, (H, 2 * C)).chunk(2, dim=-1)
    x, y, u = points.split([3 * P, 3 * P, 3 * V], dim=-1)
    return Arguments(q, k, v, x, y, u, empty(B, H, N, N), empty(H), empty(B, N, N, Z))
