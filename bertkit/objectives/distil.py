"""A student of a masked language model, made of its layers and taught by it while both read (Sanh et al. 2019).

The teacher's distributions are compared at hidden tokens only: there alone the heads are computed, which cost more
than all layers of a small encoder, and there alone the teacher is unsure and has something to tell. The paper's code
offers both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from bertkit.errors import RecipeError
from bertkit.modeling.architectures import architecture_of
from bertkit.modeling.distilbert import choose_layers, load_teacher, make_student
from bertkit.modeling.info import info_of
from bertkit.modeling.masked_head import masked_scores, masked_totals, run_at_masked, sum_of_losses
from bertkit.objectives import PretrainSetup, Totals, mlm
from bertkit.recipe import read_layers
from bertkit.recipe.options import Option, read_option
from bertkit.tokens.features import Collator, Feature

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

OPTIONS: Mapping[str, Any] = {
    **mlm.OPTIONS,
    "temperature": Option(2.0, least=0.1, most=100.0),
    "student_layers": Option(None, read=read_layers),
}
TERMS: Mapping[str, float] = {"soft": 5.0, "mlm": 2.0, "cosine": 1.0}
"""The weights with which DistilBERT was trained."""

_IS_TEXT = "is_text"  # what is not padding, (rows, tokens): a mask of documents kept apart does not tell

BEST_METRIC = mlm.BEST_METRIC

examples = mlm.examples
feature = mlm.feature
auxiliary_checkpoints = mlm.auxiliary_checkpoints


class _Answers(NamedTuple):
    """What student and teacher say of a batch: logits (masked, vocabulary), and states (tokens of text, width)."""

    logits: torch.Tensor
    teacher_logits: torch.Tensor
    states: torch.Tensor
    teacher_states: torch.Tensor
    labels: torch.Tensor
    temperature: float


def check(setup: PretrainSetup) -> None:
    """Refuse a recipe without a teacher, or with one of which no student can be made."""
    mlm.check(setup)
    _read_layers(setup)


def _read_layers(setup: PretrainSetup) -> list[int]:
    """Give the teacher's layers that the student is made of.

    Raises:
        RecipeError: no teacher is named, or it has no such layers.
        ModelError: a teacher of which no student can be made.
    """
    if setup.model_folder is None:
        raise RecipeError("a student needs a teacher", "name a pretrained masked language model with --model")
    wanted = read_option(OPTIONS, setup.recipe, "student_layers")
    return choose_layers(read_layers(wanted), setup.config)


def load_model(setup: PretrainSetup) -> Any:
    """Make the student of the checkpoint, which is its teacher; raises as `check` does, and `load_teacher`."""
    layers = _read_layers(setup)
    teacher = load_teacher(setup.model_folder, setup.config)  # type: ignore[arg-type]
    student = make_student(teacher, layers)
    info = info_of(student)
    info.teacher, info.temperature = teacher, float(read_option(OPTIONS, setup.recipe, "temperature"))
    return student


def collator(setup: PretrainSetup) -> Collator:
    """Make the collator of blocks, which also tells text from padding."""
    import torch

    collate = mlm.collator(setup)

    def collate_whole(features: Sequence[Feature]) -> dict[str, torch.Tensor]:
        batch = collate(features)
        sizes = torch.tensor([len(feature["input_ids"]) for feature in features])
        return {**batch, _IS_TEXT: torch.arange(batch["input_ids"].shape[1]) < sizes[:, None]}

    return collate_whole


def count(batch: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Count the hidden tokens, for two terms, and all tokens."""
    hidden = mlm.count(batch)["mlm"]
    return {"soft": hidden, "mlm": hidden, "cosine": int(batch[_IS_TEXT].sum())}


def losses(model: Any, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Give the sums of the three terms: what the teacher says, what was hidden, and where the states point."""
    return _sum_up(_ask(model, batch))


def _sum_up(answers: _Answers) -> dict[str, torch.Tensor]:
    return {
        "soft": soft_sum(answers.logits, answers.teacher_logits, answers.temperature),
        "mlm": sum_of_losses(answers.logits, answers.labels),
        "cosine": cosine_sum(answers.states, answers.teacher_states),
    }


def accumulate(model: Any, batch: Mapping[str, torch.Tensor]) -> Totals:
    """Sum up the terms, the right answers of both models, and the answers that are the same."""
    answers = _ask(model, batch)
    sums = {name: float(value) for name, value in _sum_up(answers).items()}
    teacher_outputs = masked_totals(answers.teacher_logits, answers.labels)
    return {
        **sums,
        **masked_totals(answers.logits, answers.labels),
        "tokens": float(len(answers.states)),
        "agreed": float((answers.logits.argmax(-1) == answers.teacher_logits.argmax(-1)).sum()),
        **{f"teacher_{name}": value for name, value in teacher_outputs.items()},
    }


def score(totals: Totals) -> dict[str, float]:
    """Give the weighted loss and its terms, the student's scores, and the teacher's beside them."""
    masked = totals["masked"]
    soft, gap = totals["soft"] / masked, totals["cosine"] / totals["tokens"]
    teacher_outputs = {
        name.removeprefix("teacher_"): value for name, value in totals.items() if name.startswith("teacher_")
    }
    return {
        "loss": TERMS["soft"] * soft + TERMS["mlm"] * totals["mlm"] / masked + TERMS["cosine"] * gap,
        **masked_scores(totals),
        **{f"teacher_{name}": value for name, value in masked_scores(teacher_outputs).items()},
        "agreement": totals["agreed"] / masked,
        "soft_loss": soft,
        "cosine": 1 - gap,
    }


def encoder(model: Any, setup: PretrainSetup) -> Any:
    """Give the student, head included; its tokenizer gives no token types where it knows none."""
    if not architecture_of(model.config).reads_token_types:
        names = setup.tokenizer.model_input_names
        setup.tokenizer.model_input_names = [name for name in names if name != "token_type_ids"]
    return model


def soft_sum(logits: torch.Tensor, teacher_outputs: torch.Tensor, temperature: float) -> torch.Tensor:
    """Give the sum of T² KL(teacher || student) at a temperature, so that gradients are as large at any one.

    >>> import torch
    >>> same = torch.tensor([[1.0, 2.0, 3.0]])
    >>> round(soft_sum(same, same, 2.0).item(), 6), round(soft_sum(same * 0, same, 2.0).item(), 4)
    (0.0, 0.3137)
    """
    from torch.nn.functional import kl_div

    given, wanted = ((each.float() / temperature).log_softmax(dim=-1) for each in (logits, teacher_outputs))
    return temperature**2 * kl_div(given, wanted, reduction="sum", log_target=True)


def cosine_sum(states: torch.Tensor, teacher_outputs: torch.Tensor) -> torch.Tensor:
    """Give the sum of 1 - cosine between the states of the same tokens, (tokens, width)."""
    from torch.nn.functional import cosine_similarity

    return (1 - cosine_similarity(states.float(), teacher_outputs.float(), dim=-1)).sum()


def _ask(model: Any, batch: Mapping[str, torch.Tensor]) -> _Answers:
    """Let student and teacher read a batch; only the student is learning."""
    import torch

    info = info_of(model)
    is_text = batch[_IS_TEXT]
    read = {name: values for name, values in batch.items() if name != _IS_TEXT}
    read["output_hidden_states"] = True  # type: ignore[assignment]
    with torch.no_grad():
        teacher_outputs, _ = run_at_masked(info.teacher.to(is_text.device), read)  # type: ignore[union-attr]
    outputs, labels = run_at_masked(model, read)
    return _Answers(
        outputs.logits[0],
        teacher_outputs.logits[0],
        outputs.hidden_states[-1][is_text],
        teacher_outputs.hidden_states[-1][is_text],
        labels,
        info.temperature,
    )
