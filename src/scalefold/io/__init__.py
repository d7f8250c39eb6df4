"""Files that appear whole or not at all; folders that can be written."""
