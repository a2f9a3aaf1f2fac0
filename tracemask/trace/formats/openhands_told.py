"""What an observation of an OpenHands tool is to the model: its content, and what its tool says around it.

Knows no event. The tools' words as of openhands-tools 1.58 and the older app's last versions; what they cut or draw
besides is counted, not made up.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from tracemask.trace.fields import Fields
from tracemask.trace.model import Block, Text
from tracemask.trace.parts import content_blocks

_FAILED = "[An error occurred during execution.]\n"
_TERMINAL = ("TerminalObservation", "ExecuteBashObservation")
_CUT_AT = {"TerminalObservation": 30_000, "ExecuteBashObservation": 30_000, "BrowserObservation": 50_000}


def told(observation: Fields, notes: Counter[str]) -> list[Block]:
    """The parts of the tool's message."""
    kind = observation.take_str("kind") or ""
    given = observation.take("content")
    output = observation.take("output") if given is None else given
    content = content_blocks([output] if isinstance(output, dict) else output, observation.at("content"))
    if kind in _TERMINAL and isinstance(observation.get("metadata"), dict):
        said = "".join(block.text for block in content if isinstance(block, Text))
        content = [Text(text=_terminal(said, Fields(observation.get("metadata"), observation.at("metadata"))))]
    blocks: list[Block] = [Text(text=_FAILED)] if observation.get("is_error") is True else []
    if kind == "TaskObservation":
        blocks.insert(0, Text(text=_task(observation)))
    cut = _CUT_AT.get(kind)
    if cut is not None and any(isinstance(block, Text) and len(block.text) > cut for block in content):
        notes[f"an observation that the model saw cut to {cut:,} characters is whole in this log"] += 1
    if observation.get("screenshot_data"):
        notes["a screenshot that the model saw beside an observation"] += 1
    return blocks + content


def told_before(kind: str | None, said: str, extras: Fields, *, called: bool) -> str:
    """The same of an observation of the older app. called: whether a call of the policy is known to have asked for it.

    Commands have said where they ended since their observations have metadata; before that they are left as they are.
    """
    if kind == "run" and isinstance(extras.get("metadata"), dict):
        text = _terminal(said, Fields(extras.get("metadata"), extras.at("metadata")))
        return text if called else f"\nObserved result of command executed by user:\n{text}"
    if kind == "error":
        return f"{said}\n[Error occurred in processing last action]"
    return f"OBSERVATION:\n{said}\n[Last action has been rejected by the user]" if kind == "user_rejected" else said


def _terminal(said: str, metadata: Fields) -> str:
    """The output between what the shell said before and after it, then where and how the command ended."""
    text = f"{metadata.get('prefix') or ''}{said}{metadata.get('suffix') or ''}"
    if metadata.get("working_dir"):
        text += f"\n[Current working directory: {metadata.get('working_dir')}]"
    if metadata.get("py_interpreter_path"):
        text += f"\n[Python interpreter: {metadata.get('py_interpreter_path')}]"
    code: Any = metadata.get("exit_code")
    if code is not None and code != -1:
        text += f"\n[Command finished with exit code {code}]"
    return text


def _task(observation: Fields) -> str:
    values = {name: observation.get(key) for name, key in _TASK.items()}
    return "\n".join(f"{name}: {value}" for name, value in values.items())


_TASK = {"Task ID": "task_id", "Subagent": "subagent", "Status": "status"}
