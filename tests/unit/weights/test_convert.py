"""Import and export against the complete parameter lists of the other codes."""

from __future__ import annotations

import gzip
import json
import struct
import tracemalloc
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scalefold.config.load import preset_tree
from scalefold.config.model import ModelConfig
from scalefold.errors import InputError
from scalefold.model.alphafold import AlphaFold
from scalefold.weights import check_state, export_weights, guess_format, import_weights
from scalefold.weights.alphafold import alphafold_entries, alphafold_to_current
from scalefold.weights.matching import model_shapes
from scalefold.weights.mlperf import NAMES as MLPERF_NAMES
from scalefold.weights.openfold import FIRST_VERSION, rename

DATA = Path(__file__).parents[2] / "data" / "weights" / "parameters.json.gz"
MODELS = [f"model_{i}{suffix}" for i in range(1, 6) for suffix in ("", "_ptm")]


@cache
def _data() -> dict[str, Any]:
    return json.loads(gzip.decompress(DATA.read_bytes()))


def _listed(code: str, model: str) -> dict[str, tuple[int, ...]]:
    entry = _data()[code][model]
    entry = _data()[code][entry] if isinstance(entry, str) else entry
    return {name: tuple(shape) for name, shape in entry.items()}


def _config(preset: str, **overrides: Any) -> ModelConfig:
    return ModelConfig.model_validate({**preset_tree(preset).get("model", {}), **overrides})


@cache
def _shapes(preset: str) -> dict[str, torch.Size]:
    return model_shapes(_config(preset))


def _meta(shapes: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    return {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}


def _micro() -> ModelConfig:
    return _config("tiny", evoformer={**preset_tree("tiny")["model"]["evoformer"], "num_blocks": 1})


@pytest.fixture(scope="module")
def state() -> dict[str, torch.Tensor]:
    """A micro model's state with no two equal values."""
    torch.manual_seed(0)
    return {k: torch.randn_like(v) for k, v in AlphaFold(_micro()).state_dict().items()}


@pytest.mark.parametrize("model", ["model_1", "model_3", "model_1_ptm", "model_3_ptm", "mlperf"])
def test_our_names_are_openfolds(model: str) -> None:
    listed = _listed("openfold", "initial_training" if model == "mlperf" else model)
    ours = {name: tuple(shape) for name, shape in _shapes(model).items()}
    assert ours == listed


def test_mlperf_preset_has_the_benchmarks_number_of_parameters() -> None:
    assert sum(shape.numel() for shape in _shapes("mlperf").values()) == 93_229_082


def test_first_version_names_become_current_ones() -> None:
    old = _meta(_listed("openfold_first_version", "model_1_ptm"))
    new = rename(old, FIRST_VERSION)
    assert {k: tuple(v.shape) for k, v in new.items()} == _listed("openfold", "model_1_ptm")
    assert rename(new, FIRST_VERSION) == new  # current names are left alone


def test_mlperf_names_become_ours() -> None:
    new = rename(_meta(_listed("mlperf", "mlperf")), MLPERF_NAMES)
    assert {k: v.shape for k, v in new.items()} == _shapes("mlperf")


@pytest.mark.parametrize("model", MODELS)
def test_every_alphafold_array_is_used_exactly_once(model: str) -> None:
    config, listed = _config(model), _listed("alphafold", model)
    entries = alphafold_entries(config)
    assert sorted(entry.key for entry in entries) == sorted(listed)
    names = [name for entry in entries for name in entry.names]
    assert sorted(names) == sorted(_shapes(model))  # sorted lists: none twice
    state = alphafold_to_current(
        {key: np.empty(shape, np.float32) for key, shape in listed.items()}, config, model
    )
    assert {k: v.shape for k, v in state.items()} == _shapes(model)


def _two_blocks(model: str) -> ModelConfig:
    return _config(model, evoformer={"num_blocks": 2}, extra_msa={"num_blocks": 2})


def _filled(model: str) -> dict[str, np.ndarray]:
    arrays = {}
    for i, (key, shape) in enumerate(sorted(_listed("alphafold", model).items())):
        if "/extra_msa_stack/" in key or "/evoformer_iteration/" in key:
            shape = (2, *shape[1:])
        j = np.arange(np.prod(shape), dtype=np.int64)
        values = ((j * 7919 + i * 104729) % 65521) / 65521 - 0.5
        arrays[key] = values.astype(np.float32).reshape(shape)
    return arrays


@pytest.mark.parametrize("model", ["model_1_ptm", "model_3"])
def test_alphafold_layouts_are_those_that_openfold_reads(model: str, tmp_path: Path) -> None:
    path = tmp_path / f"params_{model}.npz"
    np.savez(path, **_filled(model))
    state = import_weights(path, guess_format(path), _two_blocks(model))
    expected = _data()["alphafold_fingerprints"][model]
    assert state.keys() == expected.keys()
    for name, value in state.items():
        flat = value.double().flatten()
        found = float((flat * torch.arange(flat.numel(), dtype=torch.float64).cos()).sum())
        # Only the order of float64 additions may differ.
        assert found == pytest.approx(expected[name], rel=1e-9, abs=1e-9), name


def test_alphafold_round_trip_through_layouts_is_bit_exact() -> None:
    config, arrays = _two_blocks("model_3"), _filled("model_3")
    state = alphafold_to_current(arrays, config, "synthetic")
    for entry in alphafold_entries(config):
        blocks = [state[name] for name in entry.names]
        shape = arrays[entry.key].shape[1:] if entry.stacked else arrays[entry.key].shape
        back = [(b.T if b.ndim == 2 else b).reshape(shape).numpy() for b in blocks]
        np.testing.assert_array_equal(
            np.stack(back) if entry.stacked else back[0], arrays[entry.key]
        )


def test_alphafold_file_of_another_model_lists_what_differs(tmp_path: Path) -> None:
    arrays = _filled("model_1_ptm")
    with pytest.raises(InputError, match=r"(?s)73 .*/template_embedding/"):
        alphafold_to_current(arrays, _two_blocks("model_3"), "params.npz")
    with pytest.raises(InputError, match=r"first dimension"):
        alphafold_to_current(arrays, _config("model_1_ptm", extra_msa={"num_blocks": 2}), "x")


def test_export_and_import_is_bit_exact(state: dict[str, torch.Tensor], tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    export_weights(state, _micro(), path)
    back = import_weights(path, "openfold", _micro())
    assert list(back) == list(state)
    assert all(torch.equal(back[name], state[name]) for name in state)
    AlphaFold(_micro()).load_state_dict(back, strict=True)


def test_export_of_a_view_writes_the_view_only(
    state: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    export_weights(state, _micro(), tmp_path / "plain.pt")
    flat = torch.cat([v.flatten() for v in state.values()] + [torch.zeros(10**6)])
    views, start = {}, 0
    for name, value in state.items():
        views[name] = flat[start : start + value.numel()].view(value.shape)
        start += value.numel()
    export_weights(views, _micro(), tmp_path / "views.pt")
    sizes = [(tmp_path / name).stat().st_size for name in ("plain.pt", "views.pt")]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    "layout",
    [
        lambda s: {"ema": {"params": s, "decay": 0.999}, "state_dict": {"model.x": torch.zeros(1)}},
        lambda s: {"state_dict": {f"model.{k}": v for k, v in s.items()}, "epoch": 3},
        lambda s: {"module": {f"module.model.{k}": v for k, v in s.items()}},
    ],
    ids=["ema", "lightning", "deepspeed"],
)
def test_openfold_containers(layout: Any, state: dict[str, torch.Tensor], tmp_path: Path) -> None:
    torch.save(layout(state), tmp_path / "w.pt")
    back = import_weights(tmp_path / "w.pt", "openfold", _micro())
    assert all(torch.equal(back[name], state[name]) for name in state)


def test_mlperf_containers(state: dict[str, torch.Tensor], tmp_path: Path) -> None:
    # Names that both codes share suffice here: the full translation has its own test.
    swa = {"averaged_model.n_averaged": torch.tensor(3)}
    swa |= {f"averaged_model.{k}": v for k, v in state.items()}
    torch.save(swa, tmp_path / "swa_checkpoint.pt")
    torch.save({"alphafold_state_dict": state, "iteration": 7}, tmp_path / "resumable.pt")
    for name in ("swa_checkpoint.pt", "resumable.pt"):
        back = import_weights(tmp_path / name, "mlperf", _micro())
        assert all(torch.equal(back[k], state[k]) for k in state)


def test_mismatches_are_all_listed(state: dict[str, torch.Tensor]) -> None:
    changed = dict(state)
    first, second = list(state)[:2]
    del changed[first]
    changed[second] = torch.zeros(3, 5)
    changed["extra.weight"] = torch.zeros(2)
    with pytest.raises(InputError) as error:
        check_state(changed, _micro(), "file.pt")
    message = str(error.value)
    assert f"1 missing:\n  {first}" in message
    assert "1 unknown:\n  extra.weight (2,)" in message
    assert f"1 of another shape:\n  {second} is (3, 5)" in message


def test_weights_without_the_head_of_another_preset_say_so(
    state: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """What a user of OpenFold meets first: initial training has no head for the TM-score."""
    torch.save({"state_dict": {f"model.{k}": v for k, v in state.items()}}, tmp_path / "w.ckpt")
    with_head = _micro().model_copy(update={"pae_head": True})
    with pytest.raises(
        InputError,
        match=r"(?s)w\.ckpt.*\b2 .*aux_heads\.tm\.linear\.weight",
    ):
        import_weights(tmp_path / "w.ckpt", "openfold", with_head)


def test_narrow_types_widen_and_others_are_refused(state: dict[str, torch.Tensor]) -> None:
    half = {name: value.bfloat16() for name, value in state.items()}
    full = check_state(half, _micro(), "x")
    assert all(
        v.dtype == torch.float32 and torch.equal(v, half[k].float()) for k, v in full.items()
    )
    name = next(iter(state))
    with pytest.raises(InputError, match="float64"):
        check_state({**state, name: state[name].double()}, _micro(), "x")
    with pytest.raises(InputError, match=rf"(?s)NaN.*{name}"):
        check_state({**state, name: torch.full_like(state[name], torch.nan)}, _micro(), "x")


def test_a_file_that_was_cut_is_told_from_other_ones(tmp_path: Path) -> None:
    torch.save({"x": torch.zeros(100)}, tmp_path / "cut.pt")
    whole = (tmp_path / "cut.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(whole[: len(whole) // 2])
    said = rf"cut\.pt: .*{len(whole) // 2} bytes"
    for kind in ("openfold", "mlperf"):
        with pytest.raises(InputError, match=said):
            import_weights(tmp_path / "cut.pt", kind, _micro())


def test_a_flipped_bit_in_weights_is_found(state: dict[str, torch.Tensor], tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    export_weights(state, _micro(), path)
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    for bit in random.integers(0, 8 * len(whole), 40):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(changed)
        try:
            back = import_weights(path, "openfold", _micro())
        except InputError:
            continue
        assert all(torch.equal(back[name], state[name]) for name in state), bit


@pytest.mark.parametrize("with_checksums", [True, False])
def test_weights_without_checksums_are_taken_with_a_warning(
    state: dict[str, torch.Tensor],
    with_checksums: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / "w.pt"
    torch.save(state, path, _use_new_zipfile_serialization=with_checksums)
    back = import_weights(path, "openfold", _micro())
    assert all(torch.equal(back[name], state[name]) for name in state)
    warned = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == (not with_checksums)


def _zip(path: Path, entries: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)


def _npy(header: str, values: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    text = header.encode("latin-1") + b"\n"
    size = struct.pack("<H" if version[0] == 1 else "<I", len(text))
    return b"\x93NUMPY" + version + size + text + values


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93NUMPY",
        _npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}"),
        _npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -1)}", bytes(4)),
        _npy("{'descr': '<f4', 'fortran_order': False, 'shape': ()}", bytes(8)),
        _npy("{'descr': '<f4', 'fortran_order': False, 'shape': (True, 'x')}", bytes(4)),
        _npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", bytes(8)),
        _npy("{'descr': '<f16', 'fortran_order': False, 'shape': (1,)}", bytes(16)),
        _npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", bytes(4)),
        _npy("{'descr': 'no type', 'fortran_order': False, 'shape': (1,)}", bytes(4)),
        _npy("{'descr': '<f4', 'fortran_order': False}", bytes(4)),
        _npy("{'descr': " + "(" * 3000, bytes(4)),
        _npy("(" * 9000 + ")" * 900, bytes(4)),
        _npy("\x00{", bytes(4)),
        _npy("{'shape': (1,)}", bytes(4), version=b"\x02\x00"),
        _npy("{}", bytes(4), version=b"\x09\x00"),
    ],
    ids=range(16),
)
def test_odd_headers_of_arrays_are_refused(content: bytes, tmp_path: Path) -> None:
    _zip(tmp_path / "w.npz", {"x.npy": content})
    with pytest.raises(InputError, match=r"w\.npz"):
        import_weights(tmp_path / "w.npz", "alphafold", _micro())


def test_arrays_without_dimensions_are_refused() -> None:
    arrays = _filled("model_3")
    key = next(k for k, v in arrays.items() if k.endswith("preprocess_1d//weights"))
    with pytest.raises(InputError, match=key):
        alphafold_to_current({**arrays, key: np.float32(1)[()]}, _two_blocks("model_3"), "x")


@pytest.mark.parametrize("name", ["../../x.npy", "x\x00y.npy", "\ud7ff\n.npy", "/", "a" * 60_000])
def test_odd_names_in_archives_are_refused(name: str, tmp_path: Path) -> None:
    for path, kind in (("w.npz", "alphafold"), ("w.pt", "openfold")):
        _zip(tmp_path / path, {name: b"?"})
        with pytest.raises(InputError, match=path):
            import_weights(tmp_path / path, kind, _micro())
        whole = (tmp_path / path).read_bytes().replace(b"PK\x01\x02", b"PK\x01\x03")
        (tmp_path / path).write_bytes(whole)
        with pytest.raises(InputError, match=path):
            import_weights(tmp_path / path, kind, _micro())


def test_a_name_that_cannot_be_printed_is_escaped(
    state: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    for name in ("\udc80", "\x1b[2J", 3):
        torch.save({**state, name: torch.zeros(1)}, tmp_path / "w.pt")
        with pytest.raises(InputError, match=r"w\.pt") as refusal:
            import_weights(tmp_path / "w.pt", "openfold", _micro())
        assert str(refusal.value).isascii()
        assert "\x1b" not in str(refusal.value)


def test_tensors_without_plain_values_are_refused(
    state: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    name = next(iter(state))
    for odd in (state[name].to_sparse(), state[name].to("meta")):
        torch.save({**state, name: odd}, tmp_path / "w.pt")
        with pytest.raises(InputError, match=name):
            import_weights(tmp_path / "w.pt", "openfold", _micro())


@pytest.mark.parametrize("name", ["w.npz", "w.pt"])
def test_a_bomb_is_refused_before_it_is_unpacked(name: str, tmp_path: Path) -> None:
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (67108864,)}"
    content = _npy(header, bytes(256 << 20))
    entries = {"x.npy": content} if name == "w.npz" else {"x/data.pkl": content}
    _zip(tmp_path / name, entries, zipfile.ZIP_DEFLATED)
    del content, entries
    tracemalloc.start()
    with pytest.raises(InputError, match=name):
        import_weights(tmp_path / name, guess_format(tmp_path / name), _micro())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 32 << 20


@pytest.mark.parametrize("name", ["weights.pt", "weights.npz"])
def test_a_torch_file_and_arrays_are_told_apart_whatever_their_name(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    torch.save({"x": torch.zeros(3)}, path)
    with pytest.raises(InputError, match=rf"{name}.*openfold"):
        import_weights(path, "alphafold", _micro())
    with path.open("wb") as file:
        np.savez(file, x=np.zeros(3))
    for kind in ("openfold", "mlperf"):
        with pytest.raises(InputError, match=rf"{name}.*--format alphafold"):
            import_weights(path, kind, _micro())


def test_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"missing\.pt"):
        import_weights(tmp_path / "missing.pt", "openfold", _micro())
    with pytest.raises(InputError, match=r"missing\.npz"):
        import_weights(tmp_path / "missing.npz", "alphafold", _micro())
    (tmp_path / "bad.pt").write_bytes(b"not a torch file")
    (tmp_path / "text.pt").write_bytes(b"run_name: x\n")
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 broken")
    (tmp_path / "text.npz").write_bytes(b"run_name: x\n")
    (tmp_path / "empty.npz").write_bytes(b"")
    with pytest.raises(InputError, match="DeepSpeed"):
        import_weights(tmp_path, "openfold", _micro())
    bad = [("bad.pt", "openfold"), ("text.pt", "openfold"), ("bad.pt", "mlperf")]
    bad += [(name, "alphafold") for name in ("bad.npz", "text.npz", "empty.npz")]
    for name, kind in bad:
        with pytest.raises(InputError, match=name) as refusal:
            import_weights(tmp_path / name, kind, _micro())
        assert "pickle" not in str(refusal.value)  # numpy's advice is to run the file's code


def test_a_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    torch.save({"state_dict": {}, "hook": Path("/")}, tmp_path / "code.pt")
    with pytest.raises(InputError, match="Path") as refusal:
        import_weights(tmp_path / "code.pt", "openfold", _micro())
    # torch's own message goes on to say how the file's code can be run.
    assert "weights_only" not in str(refusal.value)


@pytest.mark.parametrize("folder", ["results", "."])
def test_a_folder_to_export_to_is_refused_as_such(
    folder: str, state: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(folder).mkdir(exist_ok=True)
    with pytest.raises(InputError, match="is a folder"):
        export_weights(state, _micro(), Path(folder))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="jax"):
        import_weights(tmp_path / "x", "jax", _micro())
