"""Runs of typed questions as decision models of transformers.

``import bertkit`` registers `load_decision_model` in transformers' table of decision models, so that
``pipeline("decision", model=RUN)`` answers as `bertkit predict` does.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from transformers import AutoConfig
from transformers.decision import DecisionConfig, Question, parse_questions
from transformers.decision.modeling_utils import DecisionMixin

from bertkit.errors import DataError
from bertkit.evaluation.calibration import DECISION_FILE
from bertkit.modeling.attention import preserve_sliding_window
from bertkit.modeling.heads.base import INPUTS, build_head_class
from bertkit.modeling.heads.options import ENDING, OptionHead
from bertkit.modeling.info import Model
from bertkit.recipe.load import load_recipe
from bertkit.storage.files import write_json
from bertkit.tasks.typed_questions import encode, get_type_option
from bertkit.tokens.features import TaskContext, max_tokens
from bertkit.tokens.questions import NOUL, read_request, read_state

_ERROR_TEMPLATE = "{{ raise_exception('a model of bertkit: run `import bertkit` before `pipeline(...)` to use it') }}"
"""Chat template that transformers renders if bertkit is not imported; it raises an error."""
_HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token")
# transformers limits the options of a question to its number of labels, which are letters by default.
_LABELS = [str(index) for index in range(1000)]
_READER = DecisionConfig(labels={"choice": _LABELS, "score": _LABELS}, noul_options=["false", "true"])


@strict
@dataclass
class TypedQuestionsConfig(DecisionConfig):  # type: ignore[misc]
    """Settings of a run of typed questions, from its decision.json.

    Args:
        max_length: Maximum tokens of a sequence.
        one_pass: Whether the questions of a request share sequences.
    """

    max_length: int = 256
    one_pass: bool = False

    def prepare_inputs(self, request: Any, processor: Any) -> list[tuple[dict[str, Any], list[Question]]]:
        """Encode a request as `bertkit predict` encodes a row.

        A template of transformers cannot express this encoding, because the order of labels depends on the text.

        Returns:
            Inputs and questions of each sequence. ``marks`` are the positions after the mask tokens of all options.

        Raises:
            ValueError: If the request is not valid, or leaves no room for a text.
        """
        request = json.loads(request) if isinstance(request, str) else request
        if not isinstance(request, dict) or not {"state", "questions"} <= request.keys():
            raise ValueError('a request is {"state": ..., "questions": {name: question}}, or its JSON')
        if request.get("assets"):
            raise ValueError("this model reads no images, so a request cannot have assets")
        # Questions and features have the order of the request. In both, the option "no" comes before "yes".
        questions = parse_questions(request["questions"], _READER)
        settings = {"training.max_length": self.max_length, "options.one_pass": self.one_pass}
        context = TaskContext(load_recipe("decide", settings), getattr(processor, "tokenizer", processor), ())
        try:
            records = {question.name: question.record for question in read_request(request["questions"])}
            features = encode([{"state": read_state(request["state"]), "questions": records}], context)
        except DataError as error:
            raise ValueError(str(error)) from None
        prompts = []
        for feature in features:
            inputs = {name: torch.tensor([feature[name]]) for name in INPUTS if name in feature}
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
            inputs["marks"] = torch.tensor(feature["places"]) + 1
            prompts.append((inputs, [questions[index] for index in feature["questions"]]))
        return prompts


def write_decision_config(folder: Path, context: TaskContext) -> None:
    """Write the decision.json of a run, with the temperatures of its recipe or its calibration."""
    temperatures = {kind: get_type_option(context.recipe, kind, "temperature") for kind in ("choice", "score")}
    temperatures[NOUL] = get_type_option(context.recipe, "yes_no", "temperature")
    settings = {"max_length": max_tokens(context), "one_pass": context.recipe.options.get("one_pass", False)}
    config = TypedQuestionsConfig(temperature=temperatures, chat_template=_ERROR_TEMPLATE, **settings)
    write_json(folder / DECISION_FILE, asdict(config))


class DecisionHead(DecisionMixin, OptionHead):  # type: ignore[misc]
    """`OptionHead` that returns only the scores of options, as transformers' decision models do."""

    def forward(  # type: ignore[override]
        self, marks: torch.Tensor, num_options: torch.Tensor, question_type_ids: torch.Tensor, **inputs: torch.Tensor
    ) -> torch.Tensor:
        """Return the logits before the positions `marks`, shape (1, options), of one sequence; shape (options,)."""
        logits: torch.Tensor = super().forward(**inputs).logits
        return logits[0, marks[0] - 1, 0]


def load_decision_model(folder: str | Path, *arguments: Any, config: Any = None, **options: Any) -> Model:
    """Load a run of typed questions, with the arguments of transformers' ``from_pretrained``.

    Raises:
        ValueError: If the model was trained for something else.
    """
    hub_options = {name: options[name] for name in _HUB_OPTIONS if name in options}
    config = config or AutoConfig.from_pretrained(folder, **hub_options)
    if not (config.architectures or [""])[0].endswith(ENDING):
        raise ValueError(f"{folder} is not a model of typed questions - train one with `bertkit finetune decide`")
    options.setdefault("decision_config", TypedQuestionsConfig.from_pretrained(folder, **hub_options))
    model_class: Any = build_head_class(DecisionHead, type(config), ENDING)  # type: ignore[arg-type]
    model: Model = model_class.from_pretrained(folder, *arguments, config=config, **options)
    preserve_sliding_window(model)
    return model
