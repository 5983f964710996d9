"""A text model of transformers with LoRA, as the guide has it: trained, its adapter kept, and loaded again."""

import pytest
import torch

import fedkeel as fk
from guide_tasks import follow, set_out

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _needed():
    pytest.importorskip("transformers")


def test_an_adapter_goes_back_onto_its_base(folder):
    for words in set_out(2):
        made = follow(words)
        if words[1] == "tickets.py":
            run, problem = made["run"], made["problem"]
    with torch.no_grad():
        logits = run.model()(**made["inputs"]).logits
    assert torch.equal(made["answers"], logits.argmax(1))
    trained = {name: part for name, part in made["model"].state_dict().items() if name in run.params}
    assert trained.keys() == run.params.keys()
    assert all(torch.equal(part, run.params[name]) for name, part in trained.items())
    read = fk.load_run("runs/tickets", problem=problem).model()
    assert torch.equal(read(**made["inputs"]).logits, logits)
    with pytest.raises(fk.ExperimentError) as refused:
        fk.load_run("runs/tickets").model()
    assert "fk.load_run(FOLDER, problem=problem)" in refused.value.hint
