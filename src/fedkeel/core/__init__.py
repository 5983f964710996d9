"""The algebra of methods: trees, rules, phases, methods, and the one loop over their steps. No files, no devices."""
