"""The rules, one subject a file. Adding a rule is one decorated function; adding a subject is one line here."""

SUBJECTS = (
    "lengths",
    "ids",
    "canonical",
    "masks",
    "shift",
    "authors",
    "logprobs",
    "groups",
    "shards",
)
