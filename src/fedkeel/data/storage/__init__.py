"""Where data sets lie, and how they are fetched, read and checked."""
