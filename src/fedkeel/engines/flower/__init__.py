"""Clients as nodes of a Flower federation: simulated here, or on other machines."""
