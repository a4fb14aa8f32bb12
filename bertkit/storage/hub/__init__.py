"""Find models and datasets by name in folders and in the cache, or download them from the Hugging Face Hub."""

from bertkit.storage.hub.models import WEIGHTS as WEIGHTS
from bertkit.storage.hub.models import bytes_left_out as bytes_left_out
from bertkit.storage.hub.models import cached_models as cached_models
from bertkit.storage.hub.models import find_base_model as find_base_model
from bertkit.storage.hub.models import find_model as find_model
from bertkit.storage.hub.models import get_commit as get_commit
from bertkit.storage.hub.models import is_cached as is_cached
from bertkit.storage.hub.models import split_revision as split_revision
from bertkit.storage.hub.models import without_weights as without_weights
from bertkit.storage.hub.repositories import REPEAT as REPEAT
from bertkit.storage.hub.repositories import Repository as Repository
from bertkit.storage.hub.repositories import cached_folder as cached_folder
from bertkit.storage.hub.repositories import check_token as check_token
from bertkit.storage.hub.repositories import commit_files as commit_files
from bertkit.storage.hub.repositories import create_repository as create_repository
from bertkit.storage.hub.repositories import explain as explain
from bertkit.storage.hub.repositories import fetch as fetch
from bertkit.storage.hub.repositories import find_repository as find_repository
from bertkit.storage.hub.repositories import get_repo_info as get_repo_info
from bertkit.storage.hub.repositories import hub_errors as hub_errors
from bertkit.storage.hub.repositories import is_name as is_name
from bertkit.storage.hub.repositories import is_offline_by_choice as is_offline_by_choice
from bertkit.storage.hub.repositories import offline as offline
from bertkit.storage.hub.repositories import read_benchmark as read_benchmark
from bertkit.storage.hub.repositories import write_ref as write_ref
