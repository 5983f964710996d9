"""Engines: how the clients of a round are trained. None of them knows a method."""
