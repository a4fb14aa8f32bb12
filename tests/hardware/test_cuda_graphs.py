"""Steps that are captured, on a CPU: a recorder in the place of CUDA's notes operations, and computes them again."""

from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

from bertkit.errors import RecipeError
from bertkit.hardware import cuda_graphs
from bertkit.hardware.cuda_graphs import StepGraphs
from bertkit.hardware.device import Device
from bertkit.training.micro_batches import preserve_state
from tests.conftest import finetune
from tests.kills import read_lines
from tests.test_pretend import FAMILIES

GRAPHS = ("--set", "training.cuda_graphs=true")
PLAIN = ("--set", "training.unpad=false", "--set", "training.fast_dropout=false")
OPTIONS = ("--epochs", 2, "--set", "training.log_every=1", *PLAIN)


class Recorder(TorchDispatchMode):
    """As in a CUDA graph, tensors of the capture are read and written again, and no value may be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.operations, self.changed = [], []

    def pool(self):
        return self

    def __torch_dispatch__(self, operation, types, arguments=(), keywords=None):
        keywords = keywords or {}
        if operation.overloadpacket in (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero):
            raise RuntimeError("operation not permitted when stream is capturing\nDevice-side assertions")
        if operation._schema.is_mutable:
            self.changed.insert(0, (arguments[0], torch.Tensor.clone(arguments[0].detach())))
        made = operation(*arguments, **keywords)
        self.operations.append((operation, arguments, keywords, made))
        return made

    @torch.no_grad()
    def replay(self):
        for operation, arguments, keywords, before in self.operations:
            made = operation(*arguments, **keywords)
            several = isinstance(made, (tuple, list))
            for old, new in zip(before, made, strict=True) if several else [(before, made)]:
                if isinstance(new, torch.Tensor) and new.data_ptr() != old.data_ptr():
                    old.copy_(new)


def step_of(model, waits=False):
    def compute(batch):
        outputs = model(batch["inputs"]).sum()
        outputs.backward()
        return outputs.detach() * (outputs.item() if waits else 1)

    return compute


def capture(compute, pool, device):
    """Note what `compute` computes, of which nothing remains."""
    recorder = Recorder()
    with recorder:
        output = compute()
    with torch.no_grad():
        for tensor, before in recorder.changed:
            tensor.copy_(before)
    return recorder, output


@pytest.fixture
def captured(monkeypatch):
    """The recorders of all steps of a run on the CPU."""
    made = []
    monkeypatch.setattr(Device, "has_graphs", True)
    monkeypatch.setattr(cuda_graphs, "warm_up", lambda compute, device: compute())
    monkeypatch.setattr(cuda_graphs, "capture", lambda *what: made.append(capture(*what)) or made[-1])
    return made


@pytest.mark.parametrize("accumulated", [1, 2])
@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--set", "training.class_weights=balanced"),
        ("--set", "training.freeze=1", "--set", "training.layerwise_lr_decay=0.9"),
    ],
    ids=["plain", "weighted", "frozen"],
)
def test_a_captured_run_is_that_of_other_steps(run, toy_data, still_model, captured, options, accumulated):
    settings = (*OPTIONS, *options, "--set", f"training.gradient_accumulation={accumulated}")
    plain = finetune(run, still_model, toy_data, *settings, "--output", "plain")
    assert plain.code == 0
    assert "cuda_graphs is off; steps with few tokens can be several times faster with" in plain.err
    assert not captured
    assert finetune(run, still_model, toy_data, *settings, *GRAPHS, "--output", "captured").code == 0
    # one per width of a batch, however many steps there are
    assert 1 <= len(captured) <= 4
    plain, graphs = (load_file(f"{name}/model.safetensors") for name in ("plain", "captured"))
    torch.testing.assert_close(graphs, plain, rtol=0, atol=1e-5)
    logs = [read_lines(Path(name, "metrics.jsonl")) for name in ("plain", "captured")]
    losses = [[line["loss"] for line in lines if "loss" in line] for lines in logs]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


COMPARES = "steps cannot be captured if the loss compares the texts of a batch"
REFUSED = {
    **dict.fromkeys(
        ["few-shot", "late-interaction", "similarity", "similarity-pairs", "similarity-texts", "sparse"], COMPARES
    ),
    "ner-features": "this training cannot be captured: operation not permitted",  # lengths of an LSTM are on the CPU
}
TRAINED = [name for name in FAMILIES if name != "wsd-nearest"]
STILL = "{hidden_dropout_prob: 0, attention_probs_dropout_prob: 0}"
NEW = ("--tokenizer", "demo", "--set", f"model_options={STILL}", "--size")
PRETRAINED = {
    **dict.fromkeys(["mlm", "span", "clm", "bert"], None),
    "albert": (*NEW, "tiny"),
    "roberta": (*NEW, "tiny"),
    "electra": (*NEW, "electra-small"),
}
QUICK = {"ner", "squad", "swag", "few-shot", "mlm"}


def all_but_quick_slow(names):
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("recipe", all_but_quick_slow([*TRAINED, *PRETRAINED]))
def test_every_family_learns_the_same_from_captured_steps_or_refuses(run, still_model, captured, recipe):
    start, command, more = ("--model", still_model), ("finetune", recipe), []
    if recipe in PRETRAINED:
        start, command = PRETRAINED[recipe] or start, ("pretrain", recipe)
        more = ["training.max_length=32", "training.short_length=null", "data.validation_fraction=0.1"]
    steps = {"steps": 4, "evaluate_every": 4, "log_every": 1, "unpad": "false", "fast_dropout": "false"}
    changes = [f"training.{name}={value}" for name, value in steps.items()] + more
    options = (*start, "--data", "demo", "--limit", 60, "--batch-size", 8, *(w for c in changes for w in ("--set", c)))
    plain = run(*command, *options, "--output", "plain")
    assert plain.code == 0, plain.err
    ended = run(*command, *options, *GRAPHS, "--output", "captured")
    if what := REFUSED.get(recipe):
        assert (ended.code, what in ended.err) == (2, True), ended.err
        return
    assert ended.code == 0, ended.err
    assert 1 <= len(captured) <= 5
    logs = [read_lines(Path(name, "metrics.jsonl")) for name in ("plain", "captured")]
    losses = [[line["loss"] for line in lines if "loss" in line] for lines in logs]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.usefixtures("captured")
def test_gradients_add_up_over_shapes_and_random_numbers_go_on_as_before():
    torch.manual_seed(0)
    model, unused = torch.nn.Linear(2, 1, bias=False), torch.nn.Parameter(torch.ones(1))
    graphs = StepGraphs([*model.parameters(), unused], step_of(model), partial(preserve_state, model))
    batches = [{"inputs": torch.rand(rows, 2)} for rows in (3, 2, 3)]
    state = torch.get_rng_state()
    for _ in range(2):
        outputs = [float(graphs.run(batch, torch.device("cpu"))) for batch in batches]
        assert outputs == pytest.approx([model(batch["inputs"]).sum().item() for batch in batches])
        torch.testing.assert_close(model.weight.grad, sum(batch["inputs"].sum(0) for batch in batches)[None])
        assert unused.grad is None
        model.zero_grad()
    assert len(graphs.captured_steps) == 2
    assert torch.equal(torch.get_rng_state(), state)


def test_a_step_that_waits_for_a_value_is_refused_in_one_line(captured):
    model = torch.nn.Linear(2, 1)
    graphs = StepGraphs(model.parameters(), step_of(model, waits=True), partial(preserve_state, model))
    with pytest.raises(RecipeError) as raised:
        graphs.run({"inputs": torch.rand(1, 2)}, torch.device("cpu"))
    assert str(raised.value) == (
        "training.cuda_graphs: the steps of this training cannot be captured: operation not permitted when stream is "
        "capturing - leave it out"
    )


def test_memory_that_is_too_small_for_a_capture_stays_that_error(monkeypatch, captured):
    def lack(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(cuda_graphs, "capture", lack)
    model = torch.nn.Linear(2, 1)
    with pytest.raises(torch.OutOfMemoryError):
        StepGraphs(model.parameters(), step_of(model), partial(preserve_state, model)).run(
            {"inputs": torch.rand(1, 2)}, torch.device("cpu")
        )


@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize(
    ("recipe", "options", "what"),
    [
        ("cola", ["training.gradual_unfreezing=1"], "layers are unfrozen in stages"),
        ("similarity-pairs", [], "the loss compares the texts of a batch"),
    ],
)
def test_steps_that_differ_are_refused(run, tiny_model, recipe, options, what):
    changes = [word for option in options for word in ("--set", option)]
    ended = run("finetune", recipe, "--data", "demo", "--model", tiny_model, "--limit", 64, *GRAPHS, *changes)
    assert ended.code == 2, ended.err
    assert f"training.cuda_graphs: steps cannot be captured if {what} - leave it out" in ended.err


def test_other_devices_say_that_nothing_is_captured(run, tiny_model, toy_data):
    ended = finetune(run, tiny_model, toy_data, "--epochs", 1, *GRAPHS)
    assert ended.code == 0
    assert "cuda_graphs has no effect: the CPU does not support graphs" in ended.err
