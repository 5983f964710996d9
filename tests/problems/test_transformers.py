"""Models of the package `transformers`, small and with random weights: nothing is fetched."""

import warnings

import pytest
import torch
from torch import nn

import fedkeel as fk
from fedkeel.problems.task import Task

transformers = pytest.importorskip("transformers")

TOKENS, SMALL = 9, dict(
    vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
    max_position_embeddings=24, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    initializer_range=0.5, pad_token_id=1,
)  # fmt: skip


def roberta(**changes):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = transformers.RobertaConfig(**SMALL | changes)
        return transformers.RobertaForSequenceClassification(config)


def texts(count, seed, longest=TOKENS):
    """Texts of unequal length, padded to the longest."""
    draw = torch.Generator().manual_seed(seed)
    real = torch.arange(longest) < torch.randint(3, TOKENS + 1, (count, 1), generator=draw)
    words = torch.randint(3, 40, (count, TOKENS), generator=draw)
    padded = torch.cat([words, torch.ones(count, longest - TOKENS, dtype=torch.int64)], 1).where(real, 1)
    return {"input_ids": padded, "attention_mask": real.long(), "labels": words[:, 0] % 3}


def trained(model, engine="serial", longest=TOKENS, out=None, **changes):
    clients = [texts(count, count, longest) for count in (9, 6, 4)]
    problem = fk.Problem(
        model=model, loss=nn.functional.cross_entropy, clients=clients, test=texts(30, 99, longest), classes=3
    )
    settings = dict(method="fedavg", rounds=2, participation=1.0, epochs=1, batch_size=4, lr=0.1) | changes
    return fk.run(fk.Experiment(problem=problem, **settings), engine=engine, dtype=torch.float64, out=out)


def gap(one, other):
    assert one.params.keys() == other.params.keys()
    return max(float((one.params[name] - other.params[name]).abs().max()) for name in one.params)


def test_adapters_of_a_model_train_alike_in_every_engine_whatever_the_padding():
    model = fk.lora(roberta(), 2, alpha=4, on=("*.attention.self.query", "*.attention.self.value"))
    first = trained(model)
    assert {name.split(".")[-1] for name in first.params if not name.startswith("classifier.")} == {"lora_a", "lora_b"}
    assert {name for name in first.params if name.startswith("classifier.")} == {
        f"classifier.{layer}.{part}" for layer in ("dense", "out_proj") for part in ("weight", "bias")
    }
    moved = first.params["roberta.encoder.layer.0.attention.self.query.lora_b"]
    assert float(moved.abs().max()) > 1e-4
    assert gap(first, trained(model, longest=TOKENS + 5)) < 1e-12
    assert gap(first, trained(model, "stacked")) < 1e-8
    assert gap(first, trained(model, "stacked", longest=TOKENS + 5)) < 1e-8


@pytest.mark.slow
def test_a_whole_model_trains_and_methods_of_its_outputs_too():
    for method in ("fedavg", "fedlc"):
        serial, stacked = (trained(roberta(), engine, method=method) for engine in ("serial", "stacked"))
        assert len(serial.params) == len(list(roberta().parameters()))
        assert gap(serial, stacked) < 1e-8


def test_a_paused_run_goes_on(tmp_path):
    model = fk.lora(roberta(), 2, on="*.attention.self.*")
    for rounds in (1, 3):
        paused = trained(model, out=tmp_path / "run", rounds=rounds)
    assert gap(paused, trained(model, rounds=3)) == 0
    logits = paused.model()(**{name: part for name, part in texts(5, 0).items() if name != "labels"}).logits
    assert logits.shape == (5, 3)
    other = fk.lora(roberta(initializer_range=0.4), 2, on="*.attention.self.*")
    with pytest.raises(fk.FolderError, match="differs in: problem"):
        trained(other, out=tmp_path / "run", rounds=3)


def tiny(name, **config):
    """A classification model of another family."""
    made = getattr(transformers, f"{name}Config")(vocab_size=40, num_labels=3, pad_token_id=1, **config)
    return getattr(transformers, f"{name}ForSequenceClassification")(made)


FAMILIES = {
    "Bert": {name: value for name, value in SMALL.items() if name not in ("vocab_size", "num_labels", "pad_token_id")},
    "DistilBert": dict(dim=16, n_layers=1, n_heads=2, hidden_dim=24, dropout=0.0, attention_dropout=0.0,
                       seq_classif_dropout=0.0),
    "GPT2": dict(n_embd=16, n_layer=1, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                 bos_token_id=2, eos_token_id=2),
    "Llama": dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
                  num_key_value_heads=1, use_cache=False),
}  # fmt: skip


@pytest.mark.slow
def test_other_families_stack_too():
    for name, config in FAMILIES.items():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = tiny(name, **config)
        serial, stacked = (trained(model, engine, rounds=1) for engine in ("serial", "stacked"))
        assert gap(serial, stacked) < 1e-8, name


def test_adapters_of_transposed_layers_train_alike_in_every_engine_and_as_those_of_peft():
    """GPT-2's linear layers are `Conv1D`, whose weights have the inputs first."""
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        base = tiny("GPT2", **FAMILIES["GPT2"])
        ours = fk.lora(base, 2, alpha=4, on=("*.c_attn", "*.c_fc"))
        peft = pytest.importorskip("peft")
        config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True,
                                 modules_to_save=["score"])  # fmt: skip
        theirs = peft.get_peft_model(base, config)
    with torch.no_grad():
        for name, layer in ours.named_modules():
            if hasattr(layer, "lora_a"):
                theirs.get_submodule(f"base_model.model.{name}.lora_A.default").weight.copy_(layer.lora_a)
    first, other = trained(ours), trained(theirs)
    assert gap(first, trained(ours, "stacked")) < 1e-10
    for name, value in first.params.items():
        outer, own = name.rsplit(".", 1)
        place = {"lora_a": "lora_A.default.weight", "lora_b": "lora_B.default.weight"}.get(own, own)
        outer = outer.replace("score", "score.modules_to_save.default")
        assert torch.allclose(value, other.params[f"base_model.model.{outer}.{place}"], atol=1e-10), name


def test_dropout_is_seen():
    for rate in (0.0, 0.1):
        model = roberta(attention_probs_dropout_prob=rate)
        problem = fk.Problem(model=model, loss=nn.functional.cross_entropy, clients=[texts(4, 0)])
        assert Task(problem).stochastic == (rate > 0)


# ---- peft ------------------------------------------------------------------------------------------------------------
def test_adapters_of_peft_train_as_ours():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peft = pytest.importorskip("peft")
        config = peft.LoraConfig(
            r=2, lora_alpha=4, lora_dropout=0.0, target_modules=["query", "value"], modules_to_save=["classifier"]
        )
        theirs = peft.get_peft_model(roberta(), config)
    ours = fk.lora(roberta(), 2, alpha=4, on=("*.attention.self.query", "*.attention.self.value"))
    with torch.no_grad():
        for name, layer in ours.named_modules():
            if hasattr(layer, "lora_a"):
                theirs.get_submodule(f"base_model.model.{name}.lora_A.default").weight.copy_(layer.lora_a)
    mine, other = trained(ours), trained(theirs)
    assert sum(value.numel() for value in mine.params.values()) == sum(v.numel() for v in other.params.values())
    for name, value in mine.params.items():
        outer, own = name.rsplit(".", 1)
        place = {"lora_a": "lora_A.default.weight", "lora_b": "lora_B.default.weight"}.get(own, own)
        outer = outer.replace("classifier.", "classifier.modules_to_save.default.")
        assert torch.allclose(value, other.params[f"base_model.model.{outer}.{place}"], atol=1e-10), name
    assert gap(other, trained(theirs, "stacked")) < 1e-8
