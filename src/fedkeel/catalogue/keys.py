"""What each key of an experiment means, in a sentence; the reference page is made from this."""

from __future__ import annotations

KEYS = {
    "method": (
        "The method: a name (`fedfft-d`), plug-ins on a method (`specgradfilter+scaffold`), a table of rules, or "
        "your own `module:function`."
    ),
    "dataset": "The data set by name. It brings a preset for the keys that you leave out.",
    "data": "Your own data, in place of `dataset`: one pool that `partition` divides, or a list of clients.",
    "problem": "Your own data, network and loss, in place of `dataset`: an `fk.Problem`, or its `module:name`.",
    "partition": "How the data set is divided among clients: a form of the reference, or your own `module:name`.",
    "model": "The network: a name, `timm:NAME`, `torchvision:NAME`, or your own `module:function`.",
    "rounds": "How many rounds are trained.",
    "participation": (
        'The share of clients that a round selects: `0.1` is a fixed number of them, drawn anew; `"bernoulli:0.1"` '
        'draws each client by itself; `"shuffled:0.1"` goes through all clients in passes, each in a new order, and '
        "those left over, too few for a round, sit a pass out."
    ),
    "epochs": (
        "How often a client goes through its data in a round. `0.5` is half of its batches; `[1, 5]` draws a "
        "number for each client and round."
    ),
    "steps": "A number of local steps in a round, in place of `epochs`.",
    "batch_size": "How many samples a local step sees. A number larger than any client's samples is a full batch.",
    "lr": "The clients' learning rate. If it is not given, an optimiser brings its own.",
    "lr_decay": "What the rate is multiplied by after each round. `schedule` replaces it.",
    "schedule": "How the clients' rate changes over time.",
    "server_schedule": "How the server's rate changes over time.",
    "weight_decay": "How much of the weights is added to each step's direction. 0 adds nothing.",
    "clip": "The largest norm of a step's direction. 0 does not clip.",
    "optimizer": "The clients' optimiser: a name, a table of its name and fields, or a rule.",
    "augment": "How training images are changed at random: `none`, or a preset of the data set.",
    "seed": "The seed of everything that is random.",
    "partition_seed": "The seed of the partition. If it is not given, it is `seed`.",
    "validation": (
        "The share of each client's training data that is set aside, so that sweeps and searches can choose on it."
    ),
    "participants": (
        "The clients of each round as lists, in place of a random selection. A run can be extended as far as they go."
    ),
    "unavailable": "The chance that a selected client does not answer.",
    "on_nonfinite": "What a report with NaN or infinity does: `drop` leaves it out, `stop` ends the run.",
    "buffers": (
        "What becomes of a network's buffers, such as running means: `average` them, or `keep` them with the client."
    ),
    "evaluate_every": "After how many rounds the model is scored on the test set.",
    "init": "A safetensors file with the first weights.",
    "evaluation": "Whether the global model is judged, or each client's model on its own test set.",
}
