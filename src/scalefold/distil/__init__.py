"""Self-distillation: confident predictions become training chains."""
