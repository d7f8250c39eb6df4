import math

import pytest
import torch
from tests.example import set_example_weights
from torch.nn import functional

from scalefold.config.model import StructureModuleConfig
from scalefold.geometry.rigid import Rigid, quaternion_to_rotation
from scalefold.model.invariant_point_attention import InvariantPointAttention

CONFIG = StructureModuleConfig(c_hidden=3, num_heads=2, num_qk_points=2, num_v_points=3)


@pytest.fixture
def ipa() -> InvariantPointAttention:
    ipa = InvariantPointAttention(CONFIG, 6, 5).double()
    set_example_weights(ipa)
    return ipa


def frames() -> Rigid:
    generator = torch.Generator().manual_seed(2)
    quaternion = torch.randn(1, 4, 4, generator=generator, dtype=torch.float64)
    rotation = quaternion_to_rotation(quaternion / quaternion.norm(dim=-1, keepdim=True))
    return Rigid(rotation, torch.randn(1, 4, 3, generator=generator, dtype=torch.float64))


def test_written_out(ipa) -> None:
    """Alg. 22, one residue and head at a time."""
    s, z, t = torch.randn(1, 4, 6).double(), torch.randn(1, 4, 4, 5).double(), frames()
    heads, c, pq, pv = 2, 3, 2, 3

    def points(layer, i: int, h: int, count: int) -> torch.Tensor:
        local = layer.linear(s[0, i]).view(3, heads, count)[:, h].T
        return local @ t.rotation[0, i].T + t.translation[0, i]

    results = []
    for i in range(4):
        features, coordinates, norms, pairs = [], [], [], []
        for h in range(heads):
            kv = ipa.linear_kv(s[0]).view(4, heads, 2 * c)[:, h]
            q = ipa.linear_q(s[0]).view(4, heads, c)[i, h]
            gamma = functional.softplus(ipa.head_weights[h])
            w_c = math.sqrt(2 / (9 * pq))
            logits = []
            for j in range(4):
                distance = (
                    points(ipa.linear_q_points, i, h, pq)
                    - points(ipa.linear_kv_points, j, h, pq + pv)[:pq]
                )
                logits.append(
                    math.sqrt(1 / 3)
                    * (
                        q @ kv[j, :c] / math.sqrt(c)
                        + ipa.linear_b(z[0, i, j])[h]
                        - gamma * w_c / 2 * distance.square().sum()
                    )
                )
            a = torch.softmax(torch.stack(logits), 0)
            features.append(sum(a[j] * kv[j, c:] for j in range(4)))
            pairs.append(a @ z[0, i])
            mean = sum(a[j] * points(ipa.linear_kv_points, j, h, pq + pv)[pq:] for j in range(4))
            local = (mean - t.translation[0, i]) @ t.rotation[0, i]
            coordinates.append(local)
            norms.append(torch.sqrt(local.square().sum(-1) + 1e-8))
        x = torch.cat(coordinates)  # (heads * pv, 3)
        results.append(torch.cat([*features, x[:, 0], x[:, 1], x[:, 2], *norms, *pairs]))
    expected = ipa.linear_out(torch.stack(results))
    out = ipa(s, t, ipa.shared_terms(z, torch.ones(1, 4).double()))
    torch.testing.assert_close(out[0], expected, rtol=1e-10, atol=1e-10)


def test_invariant_to_global_motion(ipa) -> None:
    s, z, t = torch.randn(1, 4, 6).double(), torch.randn(1, 4, 4, 5).double(), frames()
    motion = Rigid(t.rotation[0, 3], 5 * t.translation[0, 2])
    shared = ipa.shared_terms(z, torch.ones(1, 4).double())
    torch.testing.assert_close(
        ipa(s, motion.compose(t), shared), ipa(s, t, shared), rtol=1e-10, atol=1e-10
    )


def test_head_weights_start_at_one_and_layers_have_biases() -> None:
    ipa = InvariantPointAttention(CONFIG, 6, 5)
    torch.testing.assert_close(functional.softplus(ipa.head_weights), torch.ones(2))
    names = {n for n, _ in ipa.named_parameters()}
    for layer in ("q", "kv", "q_points.linear", "kv_points.linear", "b", "out"):
        assert f"linear_{layer}.bias" in names
