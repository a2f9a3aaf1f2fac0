#!/bin/sh
# The whole road on the bundled rollouts, offline: convert, check, show, train, report. Usage: demo.sh TRACEMASK OUT
set -eu
tm=$1
out=$2
tokenizer=fixtures/tokenizers/small
rm -rf "$out"
mkdir -p "$out"

step() { printf '\n$ tracemask %s\n' "$*"; "$tm" "$@"; }

printf '\nOne of the 41 bundled records is broken on purpose: it is named, counted and left out.\n'
step convert fixtures/rollouts/harbour.jsonl --tokenizer "$tokenizer" -o "$out/shards" --max-skipped 1
step stats "$out/shards"
# Findings of severity E would exit 1 and stop the demo.
step check "$out/shards" --tokenizer "$tokenizer"
step show "$out/shards" --tokenizer "$tokenizer" --row harbour-0-0/0
step recipe grpo
step train "$out/shards" --model fixtures/models/tiny --recipe grpo --steps 5 -o "$out/run"
step explain "$out/shards" --recipe grpo
step report "$out/shards" --tokenizer "$tokenizer" --recipe grpo -o "$out/report.html"
printf '\nDone. Open %s in a browser.\n' "$out/report.html"
