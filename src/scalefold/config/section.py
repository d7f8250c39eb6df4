"""What all sections of the configuration have in common."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator


class Section(BaseModel):
    """Base of all sections: immutable, no unknown keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _null_is_no_text(cls, value: Any) -> Any:
        if isinstance(value, str) and value in ("null", "~", ""):
            raise ValueError(
                "Snakemake's --config passes every value as text, so this is not null: write null "
                "in a file, and name the file after --configfile, too"
            )
        return value
