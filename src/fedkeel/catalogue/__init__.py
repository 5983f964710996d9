"""What is known of each method, read from its rules: cards and pages."""
