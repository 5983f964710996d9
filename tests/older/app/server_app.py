"""The server: it chooses clients, combines what they send, and keeps a checkpoint of every round."""

from pathlib import Path

from fedkeel.federation import server_app

app = server_app(Path(__file__).parent)
