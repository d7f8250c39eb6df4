import pytest
import torch
from torch import nn

from scalefold.errors import InputError
from scalefold.optim.parameters import ALIGNMENT, FlatParameters, flat_norm


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3, bias=False))


def test_parameters_become_views_with_unchanged_values() -> None:
    model = _model()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    flat = FlatParameters(model)
    assert list(model.state_dict()) == list(before)
    for name, view in flat.by_name(flat.master).items():
        parameter = model.get_parameter(name)
        assert torch.equal(view, before[name])
        assert view.data_ptr() == parameter.data_ptr()
        assert view.storage_offset() % ALIGNMENT == 0
    assert flat.num_parameters == 7 * 5 + 5 + 15


def test_gradients_gather_in_the_flat_buffer_and_equal_plain_ones() -> None:
    plain, model = _model(), _model()
    flat = FlatParameters(model)
    x = torch.randn(4, 7)
    plain(x).square().sum().backward()
    for _ in range(2):
        flat.zero_gradient()
        model(x).square().sum().backward()
        flat.collect_gradient()
    for name, view in flat.by_name(flat.gradient).items():
        assert torch.equal(view, plain.get_parameter(name).grad)
    total = torch.cat([p.grad.flatten() for p in plain.parameters()]).norm()
    torch.testing.assert_close(flat_norm(flat.gradient), total)


def test_writing_to_the_master_weights_changes_the_model() -> None:
    model = _model()
    flat = FlatParameters(model)
    flat.master.zero_()
    flat.update_working_copy()
    assert not any(p.any() for p in model.parameters())


def test_narrow_parameters_work_in_bfloat16_under_float32_masters() -> None:
    model = _model()
    exact = {name: p.detach().clone() for name, p in model.named_parameters()}
    flat = FlatParameters(model, lambda name: name.startswith("0."))
    assert [p.dtype for p in model.parameters()] == [torch.bfloat16] * 2 + [torch.float32]
    assert flat.master.dtype == torch.float32
    for name, view in flat.by_name(flat.master).items():
        assert torch.equal(view, exact[name])  # not rounded
        assert torch.equal(model.get_parameter(name), exact[name].to(model.get_parameter(name)))

    hidden = model[0](torch.randn(4, 7).bfloat16())
    model[2](hidden.float()).sum().backward()
    flat.collect_gradient()
    for name, view in flat.by_name(flat.gradient).items():
        assert view.any()
        assert torch.equal(view, model.get_parameter(name).grad.float())

    # An update below bfloat16's resolution is lost to the working copy, not to the master.
    flat.master.mul_(1 + 2**-12)
    flat.update_working_copy()
    for name, view in flat.by_name(flat.master).items():
        assert torch.equal(view, exact[name] * (1 + 2**-12))


def test_load_checks_names_and_shapes() -> None:
    flat = FlatParameters(_model())
    good = {name: torch.ones_like(v) for name, v in flat.by_name(flat.master).items()}
    flat.load(flat.master, good, "x")
    assert flat.master.sum() == flat.num_parameters
    bad = {**good, "0.bias": torch.ones(6), "more": torch.ones(1)}
    del bad["2.weight"]
    with pytest.raises(InputError) as error:
        flat.load(flat.master, bad, "step-00000004, first_moment")
    for part in (
        "step-00000004, first_moment",
        "1 missing:\n  2.weight (3, 5)",
        "1 unknown:\n  more (1,)",
        "1 of another shape:\n  0.bias is (6,), the model has (5,)",
    ):
        assert part in str(error.value)


def test_buffers_and_tied_weights_are_refused() -> None:
    with pytest.raises(ValueError, match="running_mean"):
        FlatParameters(nn.BatchNorm1d(3))
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    with pytest.raises(ValueError, match=r"1\.weight"):
        FlatParameters(tied)


def test_norm_keeps_precision_over_many_elements() -> None:
    buffer = torch.full((4096 * 4096,), 1e-3)
    # Sums run over at most 4096 terms at a time; each addition rounds by 2^-24, in the worst case
    # (equal terms) always the same way. One running sum over 2^24 terms would be off without bound.
    assert float(flat_norm(buffer)) == pytest.approx(4096e-3, rel=4096 * 2**-24)


@pytest.mark.parametrize("narrow", [None, lambda name: name.startswith("a")])
def test_copied_gradients_are_the_accumulated_ones(narrow: object) -> None:
    torch.manual_seed(0)
    model = nn.ParameterDict(
        {name: nn.Parameter(torch.randn(5, 7)) for name in ("a", "a_transposed", "b", "unused")}
    )
    flat = FlatParameters(model, narrow)
    found = []
    for backward in (flat.backward_with_hooks, flat.backward):
        for parameter in model.values():
            parameter.grad.fill_(torch.nan)  # of an earlier step
        product = model["a"].float() @ model["a_transposed"].float().t()
        backward((product**2).sum() + (model["b"] ** 3).sum())
        flat.collect_gradient()
        found.append(flat.gradient.clone())
    assert torch.equal(*found)
    assert found[0].isfinite().all()
    assert found[0].count_nonzero() == 3 * 5 * 7
