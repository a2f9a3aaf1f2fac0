"""SARIF against the published schema itself, where `SARIF_SCHEMA` names a copy of it (see docs/howto/ci.md)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from check_make import SMALL, TALK, Foreign, changed, chat, foreign, ours

from tracemask.check.formats import FORMATS
from tracemask.check.runner import check_dataset
from tracemask.render.tokenizer import Tokenizer


def test_sarif_validates_against_the_published_schema():
    import jsonschema
    import numpy as np

    place = os.environ.get("SARIF_SCHEMA", "")
    if not place:
        pytest.skip("SARIF_SCHEMA is not set: test_check_formats.py checks the members that we write")
    tokenizer = Tokenizer.load(SMALL)
    row = ours(tokenizer, chat(TALK))
    rows = Foreign([changed(foreign(row), mask=np.roll(row["sampled"], 1).astype(np.int8))])
    log = json.loads(FORMATS["sarif"](check_dataset(rows, tokenizer=tokenizer)))
    published = json.loads(Path(place).read_text(encoding="utf-8"))
    jsonschema.validators.validator_for(published)(published).validate(log)
    assert log["runs"][0]["results"]
