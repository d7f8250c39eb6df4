"""Made-up shards of the loader's benchmark are shards like others."""

from scalefold.bench.sample_costs import processor_seconds
from scalefold.bench.synthetic_shards import write_synthetic_shards
from scalefold.shards.reader import ShardReader


def test_made_up_shards_can_be_read(tmp_path, loader_config):
    write_synthetic_shards(tmp_path, lengths=[40, 40, 48], num_rows=50, num_hits=4)
    reader = ShardReader(tmp_path)
    assert reader.keys("train") == ["s000_A", "s001_A", "s002_A"]
    sample = reader.sample("s001_A")
    assert sample.msa.msa.shape == (50, 40)
    assert len(sample.templates) == 4
    found = processor_seconds(loader_config(), reader, samples=5)
    assert 0 < found["p50"] <= found["p99"]
