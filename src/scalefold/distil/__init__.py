"""Self-distillation: predictions that are sure enough become chains to train on."""
