"""From an experiment to a trained model in a folder: plan, loop, evaluation, records, checkpoints."""
