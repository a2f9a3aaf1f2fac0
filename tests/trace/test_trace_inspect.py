"""Inspect samples as the package writes them: errors, media, log-probs, choices, damaged members."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from tracemask.core.vocab import Fidelity
from tracemask.trace import Reading, Trace, read_traces
from tracemask.trace.model import Media, Reasoning, Text, ToolResult

MODEL = "mock/policy"


def event(given: list[Any], *choices: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "event": "model",
        "model": MODEL,
        "input": given,
        "tools": [],
        "output": {"model": MODEL, "choices": choices},
        **more,
    }


def choice(content: Any, stop: str = "stop", **more: Any) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": content, "source": "generate"}, "stop_reason": stop, **more}


def reading(folder: Path, *samples: Any) -> Reading:
    with zipfile.ZipFile(folder / "log.eval", "w") as archive:
        archive.writestr("header.json", json.dumps({"eval": {"model": MODEL, "task": "t"}}))
        for index, sample in enumerate(samples):
            text = (
                sample
                if isinstance(sample, str)
                else json.dumps({"id": f"s{index}", "epoch": 1, "messages": [], **sample})
            )
            archive.writestr(f"samples/{index}_epoch_1.json", text)
    return read_traces(folder / "log.eval")


def trace(folder: Path, sample: dict[str, Any]) -> Trace:
    (one,) = reading(folder, sample)
    return one


USER = {"role": "user", "content": "How high?"}


def test_a_failed_tools_words_are_its_error_message(tmp_path: Path) -> None:
    failed = {
        "role": "tool",
        "content": "",
        "tool_call_id": "c",
        "function": "f",
        "error": {"type": "timeout", "message": "too slow"},
    }
    one = trace(tmp_path, {"events": [event([USER, failed], choice("2 m"))]})
    result = one.messages[1].blocks[0]
    assert isinstance(result, ToolResult)
    assert (result.is_error, [block.text for block in result.content if isinstance(block, Text)]) == (
        True,
        ["too slow"],
    )


def test_images_are_kept_with_their_attachment_resolved(tmp_path: Path) -> None:
    part = {"type": "image", "image": "attachment://aa", "detail": "auto"}
    one = trace(
        tmp_path,
        {
            "attachments": {"aa": "data:image/png;base64,AA"},
            "events": [event([{"role": "user", "content": [part]}], choice("x"))],
        },
    )
    assert one.messages[0].parts
    (media,) = one.messages[0].blocks
    assert isinstance(media, Media)
    assert media.part == part | {"image": "data:image/png;base64,AA"}


def test_tokens_that_spell_their_ids_are_the_engines(tmp_path: Path) -> None:
    spelled = {"content": [{"token": "token_id:7", "logprob": -0.5}, {"token": "token_id:9", "logprob": -0.25}]}
    one = trace(tmp_path, {"events": [event([USER], choice("x", "max_tokens", logprobs=spelled))]})
    sampled = one.messages[1].sampled
    assert sampled is not None
    assert (sampled.token_ids, sampled.logprobs, sampled.finish_reason) == ([7, 9], [-0.5, -0.25], "length")
    assert one.fidelity is Fidelity.COMPLETION
    assert one.truncated is True


def test_log_probs_without_ids_are_kept_and_not_placed(tmp_path: Path) -> None:
    worded = {"content": [{"token": "2", "logprob": -0.5}]}
    one = trace(tmp_path, {"events": [event([USER], choice("2", logprobs=worded))]})
    assert one.messages[1].sampled is None
    assert one.messages[1].extra["log"]["logprobs"] == worded


def test_redacted_reasoning_shows_its_summary(tmp_path: Path) -> None:
    content = [{"type": "reasoning", "reasoning": "opaque", "redacted": True, "summary": "Weighed.", "signature": "s"}]
    one = trace(tmp_path, {"events": [event([USER], choice(content))]})
    (thought,) = one.messages[1].blocks
    assert isinstance(thought, Reasoning)
    assert (thought.text, thought.encrypted, thought.signature) == ("Weighed.", "opaque", "s")


def test_an_empty_choice_of_a_failed_call_is_not_a_reply_of_the_policys(tmp_path: Path) -> None:
    found = reading(
        tmp_path, {"events": [event([USER], choice(""), error="ConnectionError"), event([USER], choice("x"))]}
    )
    (one,) = found
    assert [message.text() for message in one.messages] == ["How high?", "x"]
    assert found.notes["a model event without a reply (failed, or still running)"] == 1


def test_several_choices_failed_calls_and_wordy_scores_are_noted(tmp_path: Path) -> None:
    events = [event([USER], error="500"), event([USER], choice("a"), choice("b"))]
    found = reading(tmp_path, {"events": events, "scores": {"s": {"value": "fine"}, "t": {"value": [1, 2]}}})
    (one,) = found
    assert one.rewards == {}
    assert sorted(found.notes) == [
        "a model event of several choices: the run went on with the first",
        "a model event without a reply (failed, or still running)",
        "score 's' is no number: it is no reward",
        "score 't' is no number: it is no reward",
    ]


def test_a_sample_that_cannot_be_read_costs_the_others_nothing(tmp_path: Path) -> None:
    good = {"events": [event([USER], choice("x"))]}
    found = reading(tmp_path, good, "{cut", {"events": [event([{"role": "judge"}], choice("x"))]}, good)
    assert [one.id for one in found] == ["s0/1", "s3/1"]
    assert [(error.code, error.where.split(":", 1)[1]) for error in found.skipped] == [
        ("TM910", "samples/1_epoch_1.json"),
        ("TM911", "1:samples/2_epoch_1.json.events[0].input[0].role"),
    ]


def test_a_damaged_archive_is_a_coded_error(tmp_path: Path) -> None:
    list(reading(tmp_path, {"events": [event([USER], choice("x" * 1000))]}))
    raw = (tmp_path / "log.eval").read_bytes()
    for at in range(30, len(raw) - 30, 37):
        (tmp_path / "hurt.eval").write_bytes(raw[:at] + bytes([raw[at] ^ 0xFF]) + raw[at + 1 :])
        found = read_traces(tmp_path / "hurt.eval", format="inspect")
        whole = list(found)
        assert whole or found.skipped
        assert all(error.code.startswith("TM") and "importer" not in error.what for error in found.skipped)


def test_a_reply_from_the_cache_is_noted(tmp_path: Path) -> None:
    found = reading(tmp_path, {"events": [event([USER], choice("2.1 m"), cache="read")]})
    (one,) = found
    assert one.messages[-1].author == "policy"
    assert found.notes["a reply that came from Inspect's cache: another call sampled it"] == 1
