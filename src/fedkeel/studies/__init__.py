"""Questions to several runs, or to a trained one: comparisons, sweeps, diagnostics."""
