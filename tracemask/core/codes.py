"""Operational error codes (TM9xx): what can stop a run that is not a lint rule. One line each."""

from __future__ import annotations

OPERATIONAL = {
    # 900–909 request
    "TM900": "bad-option",
    "TM901": "file-not-found",
    "TM902": "unknown-name",
    "TM903": "missing-extra",
    "TM904": "empty-input",
    "TM905": "mostly-other-files",
    # 910–919 trace input
    "TM910": "invalid-json",
    "TM911": "invalid-field",
    "TM912": "unknown-format",
    "TM913": "ambiguous-format",
    "TM914": "unsupported-version",
    "TM915": "too-many-skipped",
    "TM916": "surrogate-replaced",
    # 920–929 render
    "TM920": "template-error",
    "TM921": "template-unsupported",
    "TM922": "template-limit",
    "TM923": "tokenizer-error",
    "TM924": "not-extendable",
    # 930–939 store
    "TM930": "locked",
    "TM931": "not-a-dataset",
    "TM932": "write-failed",
    "TM933": "other-dataset-there",
    "TM934": "worker-died",
    "TM935": "stale-state",
    # 940–949 recipe
    "TM940": "invalid-recipe",
    # 950–959 loss
    "TM950": "shape-mismatch",
    "TM951": "refused-estimator",
    # 960–969 train
    "TM960": "unsupported-model",
    "TM961": "checkpoint",
    "TM962": "non-finite-gradient",
}
