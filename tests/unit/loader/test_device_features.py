"""Features made on a stream of their own, beside a step that is running."""

import pytest
import torch

from scalefold.config.schema import FeaturesConfig
from scalefold.features.pipeline import features_of
from scalefold.loader.device_features import DeviceFeatures
from scalefold.loader.prepare import Preparation, SampleTask
from scalefold.loader.tensor_block import TensorBlock

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("max_msa_clusters", [4, 16])
def test_features_are_those_made_without_a_side_stream(reader_type, max_msa_clusters):
    """Each step still runs when the next one's features are made, and memory is scarce."""
    device = torch.device("cuda")
    config = FeaturesConfig(crop_size=64, max_msa_clusters=max_msa_clusters, max_extra_msa=6)
    reader = reader_type()
    preparation = Preparation(reader, config, 0, make_features=False)
    inputs = [preparation.read(SampleTask(draw, reader.keys[draw % 3], 4)) for draw in range(60)]
    expected = [features_of(one.to(device), config, 4) for one in inputs]
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    finish, unequal = DeviceFeatures(config, device), []
    for draw, one in enumerate(inputs):
        (passes,) = finish([TensorBlock.pack(one)], 1 + draw % 4)
        torch.cuda._sleep(2_000_000)  # a step of about a millisecond
        for features, others in zip(passes, expected[draw]):
            unequal += [(draw, k, (t != others[k]).any()) for k, t in features.items()]
        del passes, features
        torch.empty(1 << 20, device=device).fill_(-1.0)
    assert [(draw, name) for draw, name, differs in unequal if differs] == []
