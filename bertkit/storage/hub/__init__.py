"""Models and data sets by name: found in folders and in the cache, or fetched from the Hugging Face hub."""

from bertkit.storage.hub.answers import answering, explain
from bertkit.storage.hub.models import WEIGHTS, bytes_left_out, cached_models, find_model, is_cached, without_weights
from bertkit.storage.hub.repositories import (
    Repository,
    cached_folder,
    fetch,
    is_name,
    is_offline_by_choice,
    look_up,
    offline,
    remember,
)

__all__ = [
    "WEIGHTS",
    "Repository",
    "answering",
    "bytes_left_out",
    "cached_folder",
    "cached_models",
    "explain",
    "fetch",
    "find_model",
    "is_cached",
    "is_name",
    "is_offline_by_choice",
    "look_up",
    "offline",
    "remember",
    "without_weights",
]
