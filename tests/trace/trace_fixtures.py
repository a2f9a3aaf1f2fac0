"""The fixture logs by format, and a temporary place for the ones that are archives."""

from __future__ import annotations

import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "fixtures" / "traces" / "formats"

# path below ROOT -> format
GOOD = {
    "openai/chat.jsonl": "openai",
    "tracemask/traces.jsonl": "tracemask",
    "verifiers/traces.jsonl": "verifiers",
    "verifiers/legacy.jsonl": "verifiers",
    "atif/trial/agent/trajectory.json": "atif",
    "atif/old.json": "atif",
    "claude-code/session.jsonl": "claude-code",
    "claude-code/agent-7.jsonl": "claude-code",
    "codex/rollout.jsonl": "codex",
    "codex/child.jsonl": "codex",
    "codex/old-compaction.jsonl": "codex",
    "swe-agent/bell.traj": "swe-agent",
    "swe-agent/gull.traj.json": "swe-agent",
    "slime/samples.jsonl": "slime",
    "verl/text.jsonl": "verl",
    "verl/ids.jsonl": "verl",
    "skyrl/batch.jsonl": "skyrl",
    "skyrl/text.jsonl": "skyrl",
    "openhands/legacy.json": "openhands",
    "tau2/results.json": "tau2",
}

# path below ROOT -> (code, place) of every refused unit, in order
BAD = {
    "openai/bad.jsonl": [
        ("TM910", "bad.jsonl:2"),
        ("TM911", "bad.jsonl:3:messages[0].role"),
        ("TM101", "bad.jsonl:4:messages[1].logprobs"),
        ("TM911", "bad.jsonl:5:messages[1].token_ids"),
        ("TM911", "bad.jsonl:6:messages[1].tool_calls[0].function.name"),
        ("TM911", "bad.jsonl:7:messages[0].token_ids"),
        ("TM911", "bad.jsonl:8:reward"),
        ("TM110", "bad.jsonl:9:messages[1].id"),
        ("TM110", "bad.jsonl:10:messages[1].parent"),
        ("TM911", "bad.jsonl:11:messages"),
        ("TM911", "bad.jsonl:12:messages"),
        ("TM911", "bad.jsonl:13:messages[1].content"),
    ],
    "tracemask/bad.jsonl": [
        ("TM914", "bad.jsonl:1:schema_version"),
        ("TM911", "bad.jsonl:2:messages[0].author"),
        ("TM911", "bad.jsonl:3:messages[0].sampled.token_ids"),
        ("TM110", "bad.jsonl:4:messages[0].parent"),
        ("TM101", "bad.jsonl:5:messages[0].sampled.columns.entropy"),
        ("TM911", "bad.jsonl:6:messages"),
    ],
    "verifiers/bad.jsonl": [
        ("TM110", "bad.jsonl:1:nodes[0].parent"),
        ("TM101", "bad.jsonl:2:nodes[1].mask"),
        ("TM101", "bad.jsonl:3:nodes[1].logprobs"),
        ("TM110", "bad.jsonl:4:nodes[1].semantic_parents[0].node"),
    ],
    "atif/bad-version.json": [("TM914", "bad-version.json:1:schema_version")],
    "atif/bad-source.json": [("TM911", "bad-source.json:1:steps[0].source")],
    "atif/bad-result.json": [("TM105", "bad-result.json:1:steps[0].observation.results[0].source_call_id")],
    "claude-code/bad-parent.jsonl": [("TM110", "bad-parent.jsonl:2:parentUuid")],
    "claude-code/bad-hole.jsonl": [("TM910", "bad-hole.jsonl:2")],
    "claude-code/bad-block.jsonl": [("TM911", "bad-block.jsonl:2:message.content[0].name")],
    "codex/bad-item.jsonl": [("TM911", "bad-item.jsonl:3:payload.name")],
    "codex/bad-role.jsonl": [("TM911", "bad-role.jsonl:2:payload.role")],
    "swe-agent/bad.traj": [("TM911", "bad.traj:1:trajectory[0].response")],
    "slime/bad.jsonl": [("TM101", "bad.jsonl:1:loss_mask"), ("TM101", "bad.jsonl:2:response_length")],
    "verl/bad.jsonl": [("TM101", "bad.jsonl:1:attention_mask"), ("TM101", "bad.jsonl:2:attention_mask")],
    "skyrl/bad.jsonl": [("TM101", "bad.jsonl:1:prompt_token_ids")],
    "openhands/bad.json": [("TM911", "bad.json:1:args")],
    "tau2/bad.json": [("TM911", "bad.json:1:simulations[0].messages[0].role")],
}


def inspect_archive(folder: Path, source: Path = ROOT / "inspect", *, compression: int = zipfile.ZIP_DEFLATED) -> Path:
    """The Inspect fixture as the archive that it is on disk."""
    path = folder / "tides.eval"
    with zipfile.ZipFile(path, "w", compression) as archive:
        for member in sorted(source.rglob("*.json")):
            archive.write(member, member.relative_to(source).as_posix())
    return path
