"""What a token counts under each normalizer on the page."""

from __future__ import annotations

import json

import numpy as np

from tracemask.report.lanes import stored_weights
from tracemask.report.scales import scales
from tracemask.store.reader import open_dataset


def test_groups_are_those_of_a_recipe_row_by_row(tmp_path):
    records = [
        {"input_ids": [1, 2, 3], "mask": [0, 1, 1], "group_id": None, "task_id": "x"},
        {"input_ids": [1, 2, 3, 4], "mask": [0, 1, 1, 1], "group_id": None, "task_id": "x"},
        {"input_ids": [1, 2], "mask": [0, 1], "group_id": float("nan"), "task_id": None},
        {"input_ids": [1, 2], "mask": [0, 0], "group_id": "g", "task_id": "x"},
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    data = open_dataset(file)
    found = scales(data, stored_weights)
    np.testing.assert_allclose(found["prompt_mean"], [1 / (3 * 5), 1 / (3 * 5), 1 / 3, 0])
    np.testing.assert_allclose(found["sequence_mean"], [1 / 8, 1 / 12, 1 / 4, 0])
    np.testing.assert_allclose(found["token_mean"], [1 / 6] * 4)


def test_a_dataset_without_scalars_is_one_rollout_a_row(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"input_ids": [1, 2], "mask": [1, 1]}\n{"input_ids": [1], "mask": [1]}\n')
    assert scales(open_dataset(file), stored_weights)["sequence_mean"].tolist() == [0.25, 0.5]


def test_the_scales_of_one_trace_use_its_rows_together(tmp_path):
    file = tmp_path / "rows.jsonl"
    record = {"input_ids": [1, 2], "mask": [1, 1], "trace_id": "t"}
    file.write_text((json.dumps(record) + "\n") * 2)
    assert scales(open_dataset(file), stored_weights)["sequence_mean"].tolist() == [0.25, 0.25]
