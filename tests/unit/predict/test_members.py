"""Weights say which model they are of, or the user does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.unit.predict.conftest import example_state

from scalefold.errors import InputError
from scalefold.predict.members import read_members


def read(paths, overrides, given=None):
    refused: dict[Path, str] = {}
    members = read_members(paths, given, overrides, refused.__setitem__)
    return members, refused


def test_a_checkpoint_gives_its_averaged_weights_and_its_configuration(checkpoint, micro):
    of_folder, of_file = read([checkpoint, checkpoint / "averaged.pt"], {})[0]
    for member in (of_folder, of_file):
        assert member.averaged
        assert member.config == micro
        assert member.loaded.step == 7
        assert not any(value.isnan().any() for value in member.loaded.weights.values())
    assert of_folder.label != of_file.label


def test_overrides_lie_over_the_checkpoints_configuration(checkpoint):
    ((member,), _) = read([checkpoint], {"evaluation": {"recycling": 5}})
    assert member.config.evaluation.recycling == 5


@pytest.mark.parametrize("preset", ["model_1", "model_3_ptm"])
def test_alphafolds_files_are_known_by_their_names(preset, write_alphafold, micro_overrides):
    ((member,), _) = read([write_alphafold(preset)], micro_overrides)
    assert member.label == preset
    assert member.config.preset == preset
    assert member.config.model.pae_head == preset.endswith("_ptm")
    assert member.config.model.template.enabled == (preset == "model_1")
    assert not member.averaged


def test_weights_that_cannot_be_used_are_told_and_the_others_read(
    checkpoint, write_alphafold, micro_overrides, micro, tmp_path
):
    unknown, missing = tmp_path / "mine.pt", tmp_path / "no.pt"
    torch.save(example_state(micro), unknown)
    other = tmp_path / "params_model_3.npz"  # in truth model_1's, with templates
    other.write_bytes(write_alphafold("model_1").read_bytes())
    members, refused = read([unknown, checkpoint, missing, other], micro_overrides)
    assert [member.loaded.path for member in members] == [checkpoint]
    assert refused.keys() == {unknown, missing, other}
    assert "--preset" in refused[unknown]
    assert "template" in refused[other]
    with pytest.raises(InputError, match="--weights"):
        read([missing, unknown], {})


def test_the_only_weights_say_themselves_what_is_wrong(tmp_path):
    text = tmp_path / "proteins.fasta"
    text.write_text(">a\nMKTAYIAK\n")
    with pytest.raises(InputError, match=r"proteins\.fasta: is no file of weights"):
        read([text], {})


def test_the_given_configuration_is_for_weights_that_do_not_say_theirs(
    checkpoint, write_alphafold, micro, micro_overrides, tmp_path
):
    torch.save(example_state(micro), tmp_path / "mine.pt")
    given = micro.model_copy(update={"seed": 5})
    paths = [tmp_path / "mine.pt", checkpoint, write_alphafold("model_3")]
    members, refused = read(paths, micro_overrides, given)
    assert refused == {}
    assert [member.config.preset for member in members] == ["tiny", "tiny", "model_3"]
    assert [member.config.seed for member in members] == [5, 0, 0]


def test_a_configuration_that_no_weights_need_is_refused(
    checkpoint, write_alphafold, micro, micro_overrides
):
    given = micro.model_copy(update={"preset": "model_5"})
    for path, own in ((checkpoint, "tiny"), (write_alphafold("model_3"), "model_3")):
        with pytest.raises(InputError, match=f"model_5.*{path}.*{own}"):
            read([path], micro_overrides, given)
