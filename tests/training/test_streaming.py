"""Batches of a stream: the same as a plain loop over its windows makes, from wherever it goes on."""

from __future__ import annotations

from itertools import cycle, islice

import numpy as np
import pytest

from bertkit.data.streams import RowStream
from bertkit.errors import UsageError
from bertkit.recipe.training import Training
from bertkit.training.batching import plan_epoch
from bertkit.training.streaming import StreamedBatches

LENGTHS = np.random.default_rng(0).integers(2, 40, 333).tolist()


def batches_of(several: bool = False, tagged: bool = False, **training) -> StreamedBatches:
    """A stream of 333 rows in windows of 200, whose features are the row's number, as often as it is long."""
    settings = Training(**{"batch_size": 4, "steps": 170, "seed": 5, **training})
    rows = [{"number": number} for number in range(len(LENGTHS))]

    def encode(read):
        return [
            {"input_ids": [row["number"]] * LENGTHS[row["number"]]}
            | ({"labels": [1] * LENGTHS[row["number"]]} if tagged else {})
            for row in read
            for _ in range(1 + several * (row["number"] % 3))
        ]

    return StreamedBatches(
        RowStream("memory", lambda: iter(enumerate(rows)), 50 * settings.batch_size), encode, settings
    )


def numbers(features) -> list[int]:
    return [feature["input_ids"][0] for feature in features]


def load(batches: StreamedBatches, processes: int = 1, process: int = 0) -> list[list[int]]:
    return list(batches.loader(numbers, processes=processes, process=process))


def plain_loop(several: bool = False, steps: int = 170) -> list[list[int]]:
    rows, planned = cycle(range(len(LENGTHS))), []
    for window in range(5):
        read = list(islice(rows, 200))
        features = [number for number in read for _ in range(1 + several * (number % 3))]
        plan = plan_epoch([LENGTHS[number] for number in features], 4, 5, window)
        planned += [[features[position] for position in batch] for batch in plan]
    return planned[:steps]


@pytest.mark.parametrize("several", [False, True])
def test_the_batches_are_those_of_a_plain_loop_over_windows(several):
    assert load(batches_of(several)) == plain_loop(several)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("step", [0, 1, 49, 50, 51, 99, 123, 169])
def test_going_on_after_a_step_gives_the_batches_that_follow(several, step):
    from accelerate.data_loader import skip_first_batches

    before = batches_of(several)
    loaded = iter(before.loader(numbers, processes=1, process=0))
    for _ in range(step):
        next(loaded)
    state = before.state(step) if step else {}
    resumed = batches_of(several)
    resumed.load_state(state)
    encoded = []
    encode, resumed.encode = resumed.encode, lambda rows: encoded.append(len(rows)) or encode(rows)
    loader = resumed.loader(numbers, processes=1, process=0)
    left = list(skip_first_batches(loader, step))
    assert left == plain_loop(several)[step:]
    assert sum(encoded) <= 200 * (2 + (170 - step) // 50)  # windows before this step are not encoded again


@pytest.mark.parametrize("several", [False, True])
def test_a_loader_that_is_a_step_ahead_knows_the_window_of_the_step_before(several):
    batches = batches_of(several)
    loaded = iter(batches.loader(numbers, processes=1, process=0))
    for step in range(1, 170):
        next(loaded)  # step + 1 is trained on while this one is loaded
        assert batches.state(step - 1)["step"] <= step - 1
        if step < 50:
            assert batches.state(step)["window"] == 0


@pytest.mark.parametrize(("parts", "processes"), [(1, 2), (2, 1), (2, 2)])
@pytest.mark.parametrize("several", [False, True])
def test_shares_make_up_the_batches_of_one_process(several, parts, processes):
    settings = {"gradient_accumulation": parts}
    if several and parts * processes == 4:
        return  # as many shares as rows of a batch: refused, see below
    shares = [load(batches_of(several, **settings), processes, process) for process in range(processes)]
    assert {len(share) for share in shares} == {170 * parts}
    for step, batch in enumerate(plain_loop(several)):
        mine = [row for share in shares for part in share[step * parts : (step + 1) * parts] for row in part]
        assert sorted(mine) == sorted(batch)
        assert all(part for share in shares for part in share[step * parts : (step + 1) * parts])


def test_a_batch_that_leaves_a_process_without_a_row_is_refused():
    with pytest.raises(UsageError, match="batch_size 4 is too small for 4 shares of a batch - make it 8"):
        load(batches_of(several=True, gradient_accumulation=2), processes=2)


@pytest.mark.parametrize(("there", "here"), [(None, "a GPU computes padding"), ("a GPU computes padding", None)])
def test_a_stream_of_tags_goes_on_with_its_batches_on_another_machine(there, here):
    from accelerate.data_loader import skip_first_batches

    before, resumed = batches_of(tagged=True), batches_of(tagged=True)
    planned = list(before.loader(numbers, processes=1, process=0, padding=there))
    items = LENGTHS[:200]
    expected = plan_epoch(items, 4, 5, 0, 50 if there else 1, items=items)
    assert planned[:50] == [batch.tolist() for batch in expected]
    resumed.load_state(before.state(169))
    loader = resumed.loader(numbers, processes=1, process=0, padding=here)
    assert list(skip_first_batches(loader, 160)) == planned[160:]


def test_only_one_window_is_held():
    batches = batches_of()
    held = []
    encode, batches.encode = batches.encode, lambda rows: held.append(len(batches.batches)) or encode(rows)
    load(batches)
    assert held == [0, 0, 0, 0]


def test_the_pace_is_that_of_the_windows_so_far():
    batches = batches_of()
    assert batches.step_size() == (0, 0)
    load(batches)
    read = list(islice(cycle(range(333)), 800))
    assert batches.step_size() == (4, sum(LENGTHS[number] for number in read) / 200)
    assert batches.rows is None


def test_the_longest_rows_are_those_of_the_buffer_which_is_read_once():
    batches = batches_of()
    loader = batches.loader(numbers, processes=1, process=0)
    longest = [len(feature["input_ids"]) for feature in batches.longest()]
    assert longest == sorted(LENGTHS, reverse=True)[: len(longest)] and len(longest) == 4
    assert list(loader) == plain_loop()
