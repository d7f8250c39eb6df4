"""Check what the demo has left: all files, and that training was seen to work."""

import json
import sys
from pathlib import Path

REQUIRED_RISE = 0.15

run = Path(sys.argv[1])
for name in ("report.html", "report.json", "config.yaml", "rejected.tsv"):
    if not (run / name).is_file():
        sys.exit(f"{run / name}: missing")
for name in ("metrics.jsonl", "step-*/averaged.pt"):
    if not list(run.glob(f"weights/*/{name}")):
        sys.exit(f"{run / 'weights'}: no {name}")
if 'id="structures-data"' not in (run / "report.html").read_text("utf-8"):
    sys.exit(f"{run / 'report.html'}: shows no structures")
report = json.loads((run / "report.json").read_text("utf-8"))
lddt = report["summary"]["lddt_ca"]["train"]
first, last = lddt["first"], lddt["last"]
rise = last["value"] - first["value"]
print(
    f"mean lDDT-CA of the training chains: {first['value']:.3f} at step {first['step']}, "
    f"{last['value']:.3f} at step {last['step']}: a rise of {rise:.3f}"
)
if first["step"] != 0 or rise < REQUIRED_RISE:
    sys.exit(f"expected a rise of at least {REQUIRED_RISE} from step 0")
