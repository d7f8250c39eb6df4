"""The kernels' tile tables, for the tuner."""

from scalefold_kernels.tiles import Overridden, overridden, read_table, read_tables, table_path

__all__ = ["Overridden", "overridden", "read_table", "read_tables", "table_path"]
