"""A text model of transformers with LoRA, as the guide has it: trained, its adapter kept, and loaded again."""

from dataclasses import replace

import pytest
import torch
from guide_tasks import follow, set_out

import fedkeel as fk

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


def test_an_adapter_of_peft_is_read_by_peft(folder):
    peft = pytest.importorskip("peft")
    set_out(2)
    from tickets import DistilBertForSequenceClassification, config, experiment, problem, texts

    def base():
        torch.manual_seed(0)
        return DistilBertForSequenceClassification(config)

    wanted = peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["q_lin", "v_lin"])
    run = fk.run(experiment.with_(problem=replace(problem, model=peft.get_peft_model(base(), wanted)), rounds=1))
    run.model().save_pretrained("adapter")
    read = peft.PeftModel.from_pretrained(base(), "adapter").eval()
    inputs = {name: part for name, part in texts(5, 9).items() if name != "labels"}
    assert torch.equal(read(**inputs).logits, run.model()(**inputs).logits)
