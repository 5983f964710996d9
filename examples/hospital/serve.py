"""Answer over HTTP with the trained model: POST a JSON list of measurements, get the chance that it is benign.

python serve.py MODEL.safetensors [PORT]
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

import torch
from safetensors.torch import load_file
from wards import COLUMNS, Scaled


def load_model(file: str) -> Scaled:
    model = Scaled().eval()
    model.load_state_dict(load_file(file))
    return model


def answer(model: Scaled, text: bytes) -> dict[str, object]:
    try:
        values = [float(value) for value in json.loads(text)]
    except (ValueError, TypeError):
        values = []
    if len(values) != len(COLUMNS):
        return {"error": f"send a list of {len(COLUMNS)} numbers: {', '.join(COLUMNS)}"}
    with torch.no_grad():
        return {"benign": round(float(model(torch.tensor([values])).softmax(-1)[0, 1]), 4)}


def serve(file: str, port: int = 8080) -> None:
    model = load_model(file)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            said = answer(model, self.rfile.read(min(int(self.headers["Content-Length"] or 0), 10_000)))
            self.send_response(400 if "error" in said else 200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(said).encode())

    HTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    serve(sys.argv[1], *map(int, sys.argv[2:3]))
