"""A training's folder: checkpoints, who may write there, and what a run may continue from."""
