"""The rules, one subject a file. Adding a rule is one decorated function; adding a subject is one line here."""

SUBJECTS = (
    "lengths", "prefix", "traces", "rendering",
    "ids", "canonical", "openers", "content",
    "masks", "shift", "labels", "authors",
    "logprobs", "scores", "statistics", "groups", "completions", "advantages",
    "shards", "repeats", "packing", "weights",
)  # fmt: skip
