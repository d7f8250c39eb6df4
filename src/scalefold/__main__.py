"""``python -m scalefold``: the command line."""

from scalefold.cli import app

app(prog_name="scalefold")
