"""A node: it trains the client that its settings name (partition-id) on its own data."""

from pathlib import Path

from fedkeel.federation import client_app

app = client_app(Path(__file__).parent)
