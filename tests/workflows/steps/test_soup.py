"""Model soups: the mean of the weights of several models."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from bertkit.workflows.steps.soup import average


def test_a_soup_has_the_mean_of_the_weights_whatever_their_order():
    models = {}
    for seed in (1, 2, 3):
        torch.manual_seed(seed)
        models[f"seed-{seed}"] = torch.nn.Linear(3, 2)

    def load_model(folder, setup, *, new_head):
        assert not new_head
        model = torch.nn.Linear(3, 2)
        model.load_state_dict(models[folder].state_dict())
        return model

    task = SimpleNamespace(load_model=load_model)
    souped, reversed_ = average([*models], task, None), average([*models][::-1], task, None)
    for name, parameter in souped.named_parameters():
        expected = torch.stack([dict(model.named_parameters())[name] for model in models.values()]).mean(dim=0)
        torch.testing.assert_close(parameter, expected)
        assert torch.equal(parameter, dict(reversed_.named_parameters())[name])
