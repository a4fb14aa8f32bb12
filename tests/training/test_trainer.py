"""What bertkit relies on in transformers: each overridden method, attribute and replaced function exists there."""

from __future__ import annotations

import inspect

import accelerate
import pytest
import transformers

from bertkit.training.trainer import BertkitTrainer

PUBLIC = {
    *("compute_loss", "create_optimizer", "create_scheduler", "evaluate", "floating_point_ops", "get_batch_samples"),
    *("get_train_dataloader", "log", "save_model", "training_step"),
}
PRIVATE = {"_clip_grad_norm", "_load_from_checkpoint"}


def parameters(cls: type, name: str) -> list[str]:
    return list(inspect.signature(getattr(cls, name)).parameters)


@pytest.mark.parametrize("name", sorted(PUBLIC | PRIVATE))
def test_an_overridden_method_exists_with_the_same_parameters(name):
    assert hasattr(transformers.Trainer, name), f"transformers {transformers.__version__} has renamed Trainer.{name}"
    assert parameters(BertkitTrainer, name) == parameters(transformers.Trainer, name)


def test_nothing_else_is_overridden():
    """A method of the same name that a later version of transformers adds would be called in place of its own."""
    inherited = {name for name in vars(BertkitTrainer) if not name.startswith("__")} & set(dir(transformers.Trainer))
    assert inherited == PUBLIC | PRIVATE


@pytest.mark.parametrize(
    "text",
    [
        "self.is_distributed_loading_by_transformers:",
        "self.model_accepts_loss_kwargs",
        "self.loss_is_scaled_for_ga",
        "self._load_from_checkpoint(resume_from_checkpoint)",
        "grad_norm = self._clip_grad_norm(model)",
        "self.get_batch_samples(epoch_iterator, num_batches, self.args.device)",
        "self.save_model(output_dir, _internal_call=True)",
        "self.optimizer.state_dict()",
        "if self.args.metric_for_best_model is not None:",  # None leaves the best step to a callback
        'plugin_kwargs.get("sync_each_batch", False)',
        "if self.args.n_gpu > 1",
    ],
)
def test_the_trainer_still_reads_and_calls(text):
    assert text in inspect.getsource(transformers.Trainer)


def test_functions_that_are_replaced_on_xla_exist():
    from bertkit.training import xla

    for name in ("skip_first_batches", "nested_gather"):
        assert callable(getattr(transformers.trainer, name)) and f'"{name}"' in inspect.getsource(xla)
    assert "xm.rendezvous" in inspect.getsource(transformers.Trainer)
    assert "distributed_type" in inspect.getsource(accelerate.PartialState)
    assert "DistributedType.XLA" in inspect.getsource(accelerate.skip_first_batches)
