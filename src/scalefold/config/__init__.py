"""The typed configuration of a run: schema, presets, loading, JSON schema."""

from scalefold.config.identity import config_hash, run_key
from scalefold.config.image import check_image
from scalefold.config.initial_weights import (
    check_initial_weights,
    initial_weights_file,
    initial_weights_sha256,
)
from scalefold.config.load import (
    config_to_yaml,
    json_schema,
    load_config,
    make_config,
    preset_config,
    preset_descriptions,
    preset_model,
    preset_names,
)
from scalefold.config.schema import Config
from scalefold.config.stages import load_stages

__all__ = [
    "Config",
    "check_image",
    "check_initial_weights",
    "config_hash",
    "config_to_yaml",
    "initial_weights_file",
    "initial_weights_sha256",
    "json_schema",
    "load_config",
    "load_stages",
    "make_config",
    "preset_config",
    "preset_descriptions",
    "preset_model",
    "preset_names",
    "run_key",
]
