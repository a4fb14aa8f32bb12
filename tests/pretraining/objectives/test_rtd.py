"""Replaced token detection: shared embeddings, replaced tokens, both losses, and the checkpoints of a run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, load_model
from torch.nn import functional
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

from bertkit.errors import RecipeError
from bertkit.evaluation.held_out import score_held_out
from bertkit.modeling.dropout import DropoutStream, fast_dropout
from bertkit.modeling.heads.pretraining import ElectraPair, make_generator_config, sample_tokens
from bertkit.pretraining.objectives import PretrainContext, rtd
from bertkit.pretraining.tokenized import TokenizedCorpus, compute_unigram_loss
from bertkit.recipe import PretrainRecipe
from bertkit.tokens.features import IGNORE_INDEX
from tests.conftest import WORDS, make_tokenizer

DEMO = Path(__file__).parents[3] / "bertkit" / "data" / "demo" / "model"
LENGTH = 24
SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def make_setup(options=None, model_folder=None, packing="documents", **more) -> PretrainContext:
    tokenizer = make_tokenizer()
    shape = {**SHAPE, "embedding_size": 16, "max_position_embeddings": 64, "initializer_range": 0.1, **STILL, **more}
    recipe = PretrainRecipe(
        name="toy", objective="rtd", options=options or {}, training={"max_length": LENGTH, "packing": packing}
    )
    return PretrainContext(recipe, tokenizer, model_folder, ElectraConfig(vocab_size=len(tokenizer), **shape))


def make_corpus(documents=40, seed=0) -> TokenizedCorpus:
    """Documents in which two words take turns, which two is drawn for each."""
    random = np.random.default_rng(seed)
    words = make_tokenizer().convert_tokens_to_ids([word for group in WORDS.values() for word in group])
    edges, tokens = [0], []
    for _ in range(documents):
        first, size = 2 * int(random.integers(len(words) // 2)), int(random.integers(4, 30))
        tokens += [words[first + step % 2] for step in range(size)]
        edges.append(len(tokens))
    starts = np.ones(len(tokens), bool)
    return TokenizedCorpus(np.array(tokens, np.uint16), starts, np.array(edges), np.arange(documents + 1), {})


def make_features(context, corpus, epoch=0, progress=0.0):
    examples = rtd.examples(corpus, LENGTH, context, epoch)
    random = [np.random.default_rng((1, epoch, number)) for number in range(len(examples))]
    return [rtd.feature(examples[number], progress, random[number], context) for number in range(len(examples))]


def make_model(context, seed=0):
    torch.manual_seed(seed)
    return rtd.load_model(context).eval()


@pytest.fixture(scope="module")
def context():
    return make_setup()


@pytest.fixture(scope="module")
def model(context):
    return make_model(context)


@pytest.fixture(scope="module")
def batch(context):
    return rtd.collator(context)(make_features(context, make_corpus()))


def is_one_storage(model) -> bool:
    ours, theirs = model.discriminator.electra.embeddings, model.generator.electra.embeddings
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    tables = [ours.word_embeddings.weight, model.generator.generator_lm_head.weight]
    return all(weight is shared for weight, shared in pairs) and tables[0] is tables[1]


def test_embeddings_are_shared_before_and_after_a_checkpoint(context, model, tmp_path):
    assert is_one_storage(model)
    assert model.generator.electra.embeddings_project.weight.shape == (8, 16)
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert not [name for name in saved if "generator.electra.embeddings." in name or "lm_head.weight" in name]
    assert any("generator.electra.embeddings_project." in name for name in saved)
    other = make_model(context, seed=1)
    load_model(other, tmp_path / "model.safetensors")
    assert is_one_storage(other)
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())


def test_the_loss_is_that_of_a_plain_loop(model, batch):
    sums, counts = rtd.sum_losses(model, batch), rtd.count(batch)
    expected, numbers = {"mlm": 0.0, "rtd": 0.0}, {"mlm": 0, "rtd": 0}
    several = "position_ids" in batch
    assert several
    others = {name: batch[name] for name in ("attention_mask", "position_ids")}
    with torch.no_grad():
        guesses = model.generator(input_ids=batch["input_ids"], **others).logits.softmax(-1).double()
        filled, labels = batch["input_ids"].clone(), torch.zeros_like(batch["input_ids"])
        for row, column in (batch["labels"] != IGNORE_INDEX).nonzero().tolist():
            original = int(batch["labels"][row, column])
            expected["mlm"] -= float(guesses[row, column, original].log())
            numbers["mlm"] += 1
            total, token = 0.0, -1
            while total <= float(batch["draws"][row, column]):
                token += 1
                total += float(guesses[row, column, token])
            filled[row, column], labels[row, column] = token, int(token != original)
        logits = model.discriminator(input_ids=filled, **others).logits
        for row, column in (batch["input_ids"] != 0).nonzero().tolist():
            loss = functional.binary_cross_entropy_with_logits(logits[row, column], labels[row, column].float())
            expected["rtd"] += float(loss)
            numbers["rtd"] += 1
        assert torch.equal(model(**batch)["replaced"], labels.bool())
    assert counts == numbers
    assert {name: float(value.detach()) for name, value in sums.items()} == pytest.approx(expected, rel=1e-4)
    assert rtd.LOSS_TERMS == {"mlm": 1.0, "rtd": 50.0}


def test_a_drawn_original_counts_as_original(context, batch):
    model = make_model(context)
    with torch.no_grad():
        model.generator.generator_lm_head.bias.fill_(-1e4)
        model.generator.generator_lm_head.bias[7] = 0.0  # token 7 is drawn for every mask
        replaced = model(**batch)["replaced"]
    masked = batch["labels"] != IGNORE_INDEX
    assert (batch["labels"] == 7).any()
    assert not replaced[batch["labels"] == 7].any()
    assert replaced[masked & (batch["labels"] != 7)].all()
    assert not replaced[~masked].any()


@pytest.mark.parametrize("whole_words", [False, True])
def test_only_masked_positions_are_replaced(whole_words):
    context = make_setup({"whole_words": whole_words, "mask_rate": 0.5})
    tokenizer = context.tokenizer
    batch = rtd.collator(context)(make_features(context, make_corpus()))
    masked = batch["labels"] != IGNORE_INDEX
    assert torch.equal(masked, batch["input_ids"] == tokenizer.mask_token_id)
    assert not torch.isin(batch["labels"][masked], torch.tensor(tokenizer.all_special_ids)).any()
    assert 0.4 < float(masked.sum() / (batch["draws"] >= 0).sum()) < 0.5  # special tokens are not maskable
    assert torch.equal(batch["draws"] < 0, batch["input_ids"] == tokenizer.pad_token_id)
    assert float(batch["draws"].max()) < 1


def test_a_batch_without_masks_has_a_loss_of_zero(model, batch):
    whole = {**batch, "labels": torch.full_like(batch["labels"], IGNORE_INDEX)}
    sums = rtd.sum_losses(model, whole)
    assert float(sums["mlm"].detach()) == 0
    sum(sums.values()).backward()
    model.zero_grad()


def test_draws_follow_the_probabilities():
    logits = torch.tensor([0.5, 0.3, 0.0, 0.2]).log()
    drawn = sample_tokens(logits.repeat(1000, 1), torch.arange(1000) / 1000)
    assert torch.bincount(drawn, minlength=4).tolist() == pytest.approx([500, 300, 0, 200], abs=1)
    extremes = torch.tensor([0.0, 1 - 2**-24])
    assert sample_tokens(torch.zeros(2, 30_000), extremes).tolist() == [0, 29_999]


def test_the_discriminator_teaches_the_generator_nothing(context, batch):
    model = make_model(context)
    rtd.sum_losses(model, batch)["rtd"].backward()
    shared = {id(parameter) for parameter in model.discriminator.electra.embeddings.parameters()}
    own = [parameter for parameter in model.generator.parameters() if id(parameter) not in shared]
    assert len(own) > 30
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in own)
    assert all(parameter.grad is not None for parameter in model.discriminator.parameters())


def test_a_split_batch_gives_the_same_sums(model, batch):
    whole = rtd.sum_losses(model, batch)
    halves = [rtd.sum_losses(model, {name: value[start::2] for name, value in batch.items()}) for start in (0, 1)]
    for name, value in whole.items():
        assert float(value.detach()) == pytest.approx(sum(float(half[name].detach()) for half in halves), rel=1e-5)


def test_scores_are_those_of_scikit_learn(context, model, batch):
    from sklearn.metrics import precision_recall_fscore_support

    outputs = model(**batch)
    tokens = batch["draws"] >= 0
    gold = outputs["replaced"][tokens].numpy()
    expected = precision_recall_fscore_support(gold, (outputs["logits"][tokens] > 0).numpy(), average="binary")
    with torch.inference_mode():
        scores = rtd.score(rtd.accumulate(model, batch))
    assert [scores[name] for name in ("precision", "recall", "f1")] == pytest.approx(expected[:3])
    assert scores["replaced_share"] == pytest.approx(gold.mean())
    sums, counts = rtd.sum_losses(model, batch), rtd.count(batch)
    means = {name: float(sums[name].detach()) / counts[name] for name in sums}
    assert scores["loss"] == pytest.approx(means["mlm"] + 50 * means["rtd"], rel=1e-5)
    assert scores["perplexity"] == pytest.approx(np.exp(means["mlm"]), rel=1e-5)


def test_an_evaluation_repeats_itself_and_disturbs_no_randomness(context):
    model = make_model(context)
    features = make_features(context, make_corpus(), progress=None)
    before = torch.get_rng_state()
    first, second = (score_held_out(model, features, rtd.collator(context), rtd, "fp32") for _ in range(2))
    assert first == second
    assert torch.equal(before, torch.get_rng_state())


def test_fast_dropout_reaches_both_models():
    model = make_model(make_setup(hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.3)).train()
    context = make_setup()
    batch = rtd.collator(context)(make_features(context, make_corpus()))
    state = torch.get_rng_state()
    with fast_dropout(model, DropoutStream(1)):
        names = [part.electra.config._attn_implementation for part in (model.discriminator, model.generator)]
        assert names == ["bertkit-dropout", "bertkit-dropout"]
        rtd.sum_losses(model, batch)
    assert torch.equal(state, torch.get_rng_state())
    assert model.generator.config._attn_implementation == "sdpa"


@pytest.mark.slow
def test_a_toy_grammar_is_learned():
    context, corpus = make_setup(), make_corpus(200)
    model = make_model(context).train()
    optimizer, collate = torch.optim.AdamW(model.parameters(), 3e-3), rtd.collator(context)
    epoch, features = 0, []
    for _ in range(220):
        if len(features) < 16:
            features, epoch = make_features(context, corpus, epoch), epoch + 1
            np.random.default_rng(epoch).shuffle(features)
        some, features = collate(features[:16]), features[16:]
        sums, counts = rtd.sum_losses(model, some), rtd.count(some)
        optimizer.zero_grad()
        sum(rtd.LOSS_TERMS[name] * sums[name] / counts[name] for name in sums).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    held_out = make_corpus(60, seed=9)
    scores = score_held_out(model, make_features(context, held_out, progress=None), collate, rtd, "fp32")
    assert np.log(scores["perplexity"]) < compute_unigram_loss(corpus, held_out, context.config.vocab_size) - 1
    assert scores["f1"] > 0.85
    assert scores["replaced_share"] > 0.02


@pytest.mark.parametrize(("size", "heads", "generator"), [(0.25, 1, 64), (0.5, 2, 128), (1.0, 4, 256), (0.75, 3, 192)])
def test_the_generator_is_a_share_of_the_discriminator(size, heads, generator):
    smaller = make_generator_config(ElectraConfig(), size)
    found = smaller.num_attention_heads, smaller.hidden_size, smaller.intermediate_size
    assert found == (heads, generator, 4 * generator)
    assert (smaller.embedding_size, smaller.num_hidden_layers) == (128, 12)


def test_a_share_without_whole_heads_is_refused():
    with pytest.raises(RecipeError, match=r"options.generator_size 0.125 of 4 heads .* give a multiple of 1/4"):
        make_generator_config(ElectraConfig(), 0.125)


def test_electra_small_has_14_million_weights():
    config = ElectraConfig()
    with torch.device("meta"):
        model = ElectraPair(ElectraForPreTraining(config), ElectraForMaskedLM(make_generator_config(config, 0.25)))
    assert sum(parameter.numel() for parameter in model.discriminator.parameters()) == 13_549_057
    both = sum(parameter.numel() for parameter in model.parameters())
    assert 600_000 < both - 13_549_057 < 700_000  # of the generator's own


def arguments(*more: object, steps: int = 12) -> list[str]:
    shape = "model_options={hidden_size: 32, embedding_size: 16, num_hidden_layers: 2, intermediate_size: 64}"
    new = [] if "--model" in more else ["--tokenizer", str(DEMO), "--set", shape]
    given = ["pretrain", "electra", "--data", "demo", *new, "--batch-size", "8"]
    given += ["--max-length", "32", "--limit", "200", "--steps", str(steps), "--set", "training.precision=fp32"]
    given += ["--set", "training.eval_blocks=20", "--set", "training.evaluate_every=5"]
    return [*given, *([] if "--output" in more else ["--output", "run"]), *map(str, more)]


def outputs_of(run: Path) -> dict[str, object]:
    files = [file for file in run.rglob("model.safetensors") if "checkpoint" not in str(file)]
    found = {str(file): {name: value.tolist() for name, value in load_file(file).items()} for file in files}
    named = {str(Path(name).relative_to(run)): value for name, value in found.items()}
    assert sorted(named) == ["generator/model.safetensors", "model.safetensors"]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    metrics = [{name: value for name, value in line.items() if "runtime" not in name} for line in lines]
    return {**named, "metrics": metrics, "scores": json.loads((run / "run.json").read_text())["result"]["scores"]}


@pytest.fixture(scope="module")
def unbroken(zygote, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    code, text = zygote.run(folder, arguments())
    assert code == 0, text
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "workers"),
    [(8, 0), pytest.param(3, 0, marks=pytest.mark.slow), pytest.param(8, 2, marks=pytest.mark.slow)],
)
def test_a_kill_changes_nothing(zygote, unbroken, tmp_path, step, workers):
    fault = {"function": "transformers.trainer.Trainer.training_step", "call": step}
    assert zygote.run(tmp_path, arguments(), fault)[0] == -9
    code, text = zygote.run(tmp_path, arguments("--workers", workers))
    assert code == 0, text
    assert outputs_of(tmp_path / "run") == outputs_of(unbroken / "run")


@pytest.mark.slow
def test_two_processes_learn_the_same_as_one(run):
    still = [part for name in STILL for part in ("--set", f"model_options.{name}=0.0")]
    assert run(*arguments(*still, "--set", "training.log_every=1", "--output", "one", steps=6)).code == 0
    launch = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "bertkit"]
    command = arguments(*still, "--set", "training.log_every=1", "--output", "two", steps=6)
    ended = subprocess.run([sys.executable, "-m", *launch, *command], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    ours, theirs = outputs_of(Path("one"))["metrics"], outputs_of(Path("two"))["metrics"]
    assert len(ours) == len(theirs)
    for one, two in zip(ours, theirs, strict=True):
        assert one == pytest.approx(two, abs=1e-3)


@pytest.fixture(scope="module")
def pretrained(unbroken) -> Path:
    return unbroken / "run"


def test_both_models_are_plain_checkpoints(pretrained):
    from transformers import AutoModelForMaskedLM, AutoModelForPreTraining, pipeline

    discriminator, report = AutoModelForPreTraining.from_pretrained(pretrained, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    generator, report = AutoModelForMaskedLM.from_pretrained(pretrained / "generator", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert (discriminator.config.hidden_size, generator.config.hidden_size) == (32, 8)
    ours, theirs = discriminator.electra.embeddings.state_dict(), generator.electra.embeddings.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    fill = pipeline("fill-mask", model=str(pretrained / "generator"), device="cpu")
    assert len(fill("the king found the [MASK].")) == 5
    assert "fill-mask" not in (pretrained / "README.md").read_text()


def test_the_best_checkpoint_is_the_one_with_the_best_generator(pretrained):
    found = json.loads((pretrained / "run.json").read_text())
    lines = [json.loads(line) for line in (pretrained / "metrics.jsonl").read_text().splitlines()]
    scored = {line["step"]: line["eval_perplexity"] for line in lines if "eval_perplexity" in line}
    assert found["best_step"] == min(scored, key=scored.__getitem__)


def test_the_base_rate_of_replaced_tokens_is_a_baseline(pretrained):
    result = json.loads((pretrained / "run.json").read_text())["result"]
    share = result["scores"]["replaced_share"]
    assert list(result["baselines"]["token frequencies"]) == ["perplexity"]
    every = result["baselines"]["every token replaced"]
    assert every == {"precision": share, "recall": 1.0, "f1": pytest.approx(2 * share / (1 + share))}


@pytest.mark.slow
def test_the_result_can_be_finetuned(run, pretrained, toy_data):
    ended = run("finetune", "classify", "--model", pretrained, "--data", toy_data, "--epochs", 1, "--output", "tuned")
    assert ended.code == 0, ended.err


def test_training_continues_with_both_models(run, pretrained):
    ended = run(*arguments("--model", pretrained, "--learning-rate", "1e-9", steps=2))
    assert ended.code == 0, ended.err
    assert "new" not in ended.err
    before, after = outputs_of(pretrained), outputs_of(Path("run"))
    for part in ("model.safetensors", "generator/model.safetensors"):
        for name, value in before[part].items():
            assert np.allclose(value, after[part][name], atol=1e-6), name


def test_a_discriminator_without_a_generator_gets_a_new_one(run, pretrained, tmp_path):
    import shutil

    shutil.copytree(pretrained, tmp_path / "alone", ignore=shutil.ignore_patterns("generator", "checkpoint-*"))
    ended = run(*arguments("--model", tmp_path / "alone", steps=2))
    assert ended.code == 0, ended.err
    assert "no generator/ in the checkpoint: the generator is new" in ended.err
    assert "new and random" not in ended.err


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (["--size", "tiny"], "error: rtd needs an ELECTRA, not a model of type bert - use --size electra-small"),
        (["--model", DEMO], "error: rtd needs an ELECTRA, not a model of type"),
        (["--set", "options.generator_size=0.2"], "error: options.generator_size 0.2 of 4 heads and 32 hidden"),
        (["--set", "options.generator_size=2"], "error: options.generator_size is 2 - give a number from 0.125 to 1"),
    ],
)
def test_mistakes_end_in_one_line(run, more, line):
    if "--size" in more:
        more = ["--set", "model_options={hidden_size: 32, num_attention_heads: 2}", *more]
    ended = run(*arguments(*more))
    assert (ended.code, ended.last[: len(line)]) == (2, line)
