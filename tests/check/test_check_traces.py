"""Rules about messages and rendering: what only the trace or the template can tell."""

from __future__ import annotations

import json

import pytest
from check_make import SMALL, Rows
from check_rollouts import TOOLS

from tracemask.check.config import Settings
from tracemask.check.runner import Session, check_dataset
from tracemask.check.sources import check_paths
from tracemask.render.renderer import Renderer
from tracemask.render.tokenizer import Tokenizer
from tracemask.store.rows import of_sample
from tracemask.trace import Trace


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(SMALL)


USER = {"role": "user", "content": "When does the boat leave?"}
ANSWER = {"role": "assistant", "content": "At noon."}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "noon"}


def call(arguments, **more):
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "board", "arguments": arguments}}],
        **more,
    }


GOOD = [USER, call({"pier": 4}), RESULT, ANSWER]


def of_trace(*traces, tokenizer=None):
    """(code, turn) of what the rules about messages say."""
    session = Session(Settings(), tokenizer=tokenizer)
    session.start(None)
    for trace in traces:
        session.trace(trace, alone=True)
    return [(f.code, f.place.turn) for f in session.report().findings]


def rendered(renderer, messages, **facts):
    trace = Trace.from_messages(messages, id="t", **facts)
    return Rows([of_sample(sample, trace, index=i) for i, sample in enumerate(renderer.render(trace))])


def of_rows(rows, tokenizer):
    report = check_dataset(rows, tokenizer=tokenizer)
    return {(f.code, f.place.row, f.place.turn) for group in report.groups if group.severity.value in "EW"
            for f in group.examples}  # fmt: skip


def test_a_good_trace_has_no_finding(tokenizer):
    assert of_trace(Trace.from_messages(GOOD, id="t"), tokenizer=tokenizer) == []


def test_arguments_that_are_json_in_a_json_string_are_found_at_their_message():
    double = json.dumps(json.dumps({"pier": 4}))
    assert ("TM104", 1) in of_trace(Trace.from_messages([USER, call(double), RESULT, ANSWER], id="t"))


def test_a_tool_result_without_its_call_is_found():
    assert of_trace(Trace.from_messages([USER, RESULT, ANSWER], id="t")) == [("TM105", 1)]


def test_a_reward_that_is_not_the_sum_of_its_parts_breaks_an_invariant():
    trace = Trace.from_messages(GOOD, id="t", reward=1.0, rewards={"a": {"score": 0.25}})
    assert of_trace(trace) == [("TM110", None)]


def message(role, author, *, id, **facts):
    return {"id": id, "role": role, "author": author, "blocks": [{"type": "text", "text": "hm"}], **facts}


ASKED = message("user", "user", id="a")
SAID = message("assistant", "policy", id="b")
OTHER_BLOCK = {"type": "text", "text": "and so on", "author": "model"}
BREACHES = {
    "repeated id": ([ASKED, {**SAID, "id": "a"}], {}, 1),
    "no such parent": ([ASKED, {**SAID, "parent": "zz"}], {}, 1),
    "own ancestor": ([{**ASKED, "parent": "b"}, {**SAID, "parent": "a"}], {}, 0),
    "sampled by the user": ([{**ASKED, "sampled": {"token_ids": [5]}}, SAID], {}, 0),
    "the policy in the tool's place": ([ASKED, {**SAID, "role": "user"}], {}, 1),
    "two authors": ([ASKED, {**SAID, "blocks": [*SAID["blocks"], OTHER_BLOCK]}], {}, 1),
    "rewards": ([ASKED, SAID], {"reward": 1.0, "rewards": {"a": {"score": 0.25}}}, None),
    "edge from nowhere": ([ASKED, SAID], {"edges": [{"kind": "compaction", "at": "zz", "to": "b"}]}, None),
    "edge to nowhere": ([ASKED, SAID], {"edges": [{"kind": "compaction", "at": "a", "to": "zz"}]}, None),
}


@pytest.mark.parametrize("name", sorted(BREACHES))
def test_each_way_in_which_a_trace_contradicts_itself_is_found_at_its_message(name):
    messages, facts, turn = BREACHES[name]
    trace = Trace.model_validate({"id": "t", "messages": messages, **facts})
    found = of_trace(trace)
    assert ("TM110", turn) in found and {code for code, _ in found} == {"TM110"}
    assert of_trace(Trace.model_validate({"id": "t", "messages": [ASKED, SAID]})) == []


def calls(*prompts, reply=(7, 8, 9)):
    """Calls with these exact prompts and one reply each, on one branch."""
    messages = []
    for k, prompt in enumerate(prompts):
        messages.append(message("user", "user", id=f"u{k}"))
        sampled = {"token_ids": list(reply), "prompt_ids": list(prompt)}
        messages.append(message("assistant", "policy", id=f"a{k}", sampled=sampled))
    return Trace.model_validate({"id": "t", "messages": messages})


@pytest.mark.parametrize(
    ("second", "cause"),
    [
        ([1, 2, 3, 7, 8, 9, 4], None),
        ([1, 2, 3, 7, 8, 9], None),
        ([1, 2, 3, 7, 88, 9, 4], "reply re-tokenized"),
        ([1, 2, 3, 7, 8], "reply re-tokenized"),
        ([1, 5, 3, 7, 8, 9, 4], "history rewritten"),
    ],
)
def test_a_call_whose_prompt_does_not_go_on_from_the_call_before_is_a_prefix_break(second, cause):
    session = Session(Settings(select=("TM102",)))
    session.start(None)
    session.trace(calls([1, 2, 3], second), alone=True)
    found = session.report().findings
    assert [(f.code, f.place.turn, f.cause) for f in found] == ([] if cause is None else [("TM102", 3, cause)])


def test_a_branch_that_starts_anew_is_no_prefix_break():
    trace = calls([1, 2, 3], [6, 6, 6])
    rooted = [each.model_copy(update={"parent": None}) if each.id == "u1" else each for each in trace.messages]
    session = Session(Settings(select=("TM102",)))
    session.start(None)
    session.trace(trace.model_copy(update={"messages": rooted}), alone=True)
    assert len(trace.branches()) == 1 and session.report().findings == []


def test_two_user_messages_in_a_row_are_found_where_a_template_is_known(tokenizer):
    trace = Trace.from_messages([USER, {"role": "user", "content": "Go on."}, ANSWER], id="t")
    assert of_trace(trace, tokenizer=tokenizer) == [("TM113", 1)]
    assert of_trace(trace) == []


@pytest.mark.parametrize("arguments", ["", "{not json", '{"x": 1, "x": 2}'])
def test_empty_broken_and_repeated_arguments_are_found(arguments):
    assert ("TM114", 1) in of_trace(Trace.from_messages([USER, call(arguments), RESULT, ANSWER], id="t"))


def test_a_log_is_checked_without_a_tokenizer_and_names_file_and_line(tmp_path):
    log = tmp_path / "log.jsonl"
    lines = [json.dumps({"messages": GOOD}), json.dumps({"messages": [USER, RESULT, ANSWER]})]
    log.write_text("\n".join(lines) + "\n")
    report = check_paths([str(log)], settings=Settings())
    (finding,) = report.findings
    assert finding.code == "TM105" and str(finding.place) == f"{log}:2:turn 1"
    assert report.traces == 2 and report.exit_code == 1


def test_text_that_the_template_drops_is_found_at_its_message(tokenizer):
    messages = [USER, {**ANSWER, "reasoning_content": "I know it."}, USER, ANSWER]
    rows = rendered(Renderer(tokenizer, history="as_rendered"), messages)
    assert of_rows(rows, tokenizer) == {("TM103", 0, 1)}


def test_a_reply_that_forks_for_its_render_is_position_dependent(tokenizer):
    messages = [USER, {**ANSWER, "reasoning_content": "I know it."}, USER, ANSWER]
    rows = rendered(Renderer(tokenizer), messages)
    assert len(rows) == 2
    assert {code for code, _, _ in of_rows(rows, tokenizer)} == {"TM108"}


def test_tools_that_the_template_ignores_are_found(tokenizer):
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    rows = rendered(Renderer(tokenizer, template=template), [USER, ANSWER], tools=TOOLS)
    assert of_rows(rows, tokenizer) == {("TM112", 0, None)}


def test_a_generation_prompt_that_is_no_prefix_is_noted(tokenizer):
    history = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    template = history + "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
    rows = rendered(Renderer(tokenizer, template=template), [USER, ANSWER])
    report = check_dataset(rows, tokenizer=tokenizer, settings=Settings(select=("TM111",)))
    assert {f.code for f in report.findings} == {"TM111"}


def test_a_reply_that_stands_by_its_ids_is_named(tokenizer):
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.name }}"
        "{% for k, v in c.function.arguments|items %}{{ k }}={{ v }}{% endfor %}{% endfor %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    settings = Settings(select=("TM116",))
    for broken, codes in (('{"ship": ', ["TM116"]), ('{"ship": 1}', [])):
        reply = {**call(broken), "token_ids": tokenizer.encode("lookup {<|im_end|>")}
        rows = rendered(Renderer(tokenizer, template=template), [USER, reply, RESULT])
        found = check_dataset(rows, tokenizer=tokenizer, settings=settings).findings
        assert [(finding.code, finding.place.turn) for finding in found] == [(code, 1) for code in codes]


def test_arguments_that_were_passed_otherwise_are_noted(tokenizer):
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.name }}"
        "{% for k, v in c.function.arguments|items %}{{ k }}={{ v }}{% endfor %}{% endfor %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    messages = [USER, call('{"ship": "Alba"}'), RESULT, ANSWER]
    report = check_dataset(
        rendered(Renderer(tokenizer, template=template), messages),
        tokenizer=tokenizer,
        settings=Settings(select=("TM115",)),
    )
    (found,) = report.findings
    assert (found.code, found.place.turn) == ("TM115", 1) and "tool-call arguments" in found.message
    given = [USER, call({"ship": "Alba"}), RESULT, ANSWER]
    rows = rendered(Renderer(tokenizer, template=template), given)
    assert not check_dataset(rows, tokenizer=tokenizer, settings=Settings(select=("TM115",))).findings


def test_breaches_that_convert_noted_are_told_from_shards(tokenizer):
    rows = rendered(Renderer(tokenizer), GOOD)
    note = {"code": "TM105", "message": "answers no earlier call", "place": {"turn": 2}}
    rows[0].scalars["findings"] = [json.dumps(note), json.dumps({"code": "TM916", "message": "repaired", "place": {}})]
    report = check_dataset(rows, tokenizer=tokenizer)
    assert [(f.code, f.place.row, f.place.turn) for f in report.findings] == [("TM105", 0, 2)]
    assert "TM104" not in report.ran
    assert report.notes == ("TM916 noted when the log was read: 1 times",)


HARBOUR = SMALL.parents[1] / "rollouts" / "harbour.jsonl"


def test_a_rendered_row_of_a_log_is_found_at_its_line_in_the_file_that_was_given():
    """Row 24 was rendered from line 25; line 21 is broken, and some lines make two rows."""
    report = check_paths([str(HARBOUR)], settings=Settings(tokenizer=str(SMALL)))
    lines = HARBOUR.read_text().split("\n")
    placed = [finding for finding in report.findings if finding.place.id is not None]
    assert {finding.code for finding in placed} >= {"TM102", "TM107", "TM208", "TM409"}
    for finding in placed:
        assert finding.place.path == str(HARBOUR) and finding.place.line is not None
        assert finding.place.id is not None
        assert json.loads(lines[finding.place.line - 1])["id"] == finding.place.id.split("/")[0]
    assert report.unreadable[0].startswith(f"{HARBOUR}:21: TM910")
    (cut,) = (finding for finding in placed if finding.code == "TM107")
    assert str(cut.place) == f"{HARBOUR}:25:turn 4:token 1622"
    twin = next(finding for finding in placed if finding.code == "TM409")
    assert "sampled tokens are those of line 27" in twin.message


def test_annotations_of_a_log_stand_on_its_lines_and_name_what_could_not_be_read():
    from tracemask.check.formats import FORMATS

    report = check_paths([str(HARBOUR)], settings=Settings(tokenizer=str(SMALL), select=("TM107",)))
    (run,) = json.loads(FORMATS["sarif"](report))["runs"]
    (result,) = run["results"]
    assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == 25
    assert any("harbour.jsonl:21: TM910" in note["message"]["text"] and note["level"] == "error"
               for note in run["invocations"][0]["toolExecutionNotifications"])  # fmt: skip
    github = FORMATS["github"](report)
    assert "harbour.jsonl,line=25,title=TM107" in github
    assert "::error title=unreadable record::" in github and "harbour.jsonl:21: TM910" in github
    junit = FORMATS["junit"](report)
    assert 'failures="1"' in junit and "harbour.jsonl:21: TM910" in junit
    assert "harbour.jsonl:21: TM910" in FORMATS["html"](report)
    assert "1 unreadable record in 40 traces" in FORMATS["text"](report)


@pytest.mark.parametrize("kind", ["folder", "glob", "gz", "zst", "json", "parquet", "mixed folder"])
def test_a_log_is_a_log_however_it_lies(tmp_path, kind):
    import gzip

    import pyarrow as pa
    import pyarrow.parquet as pq

    row = {"messages": [USER, RESULT, ANSWER]}
    text = (json.dumps(row) + "\n").encode()
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "notes.txt").write_text("no log")
    path = str(logs)
    if kind in ("folder", "glob", "mixed folder"):
        (logs / "a.jsonl").write_bytes(text)
        path = str(logs / "*.jsonl") if kind == "glob" else path
        if kind == "mixed folder":
            (logs / "a.json").write_text('{"lr": 1}')
    elif kind == "parquet":
        path = str(logs / "a.parquet")
        pq.write_table(pa.Table.from_pylist([row]), path)
    elif kind == "json":
        path = str(logs / "a.json")
        (logs / "a.json").write_text(json.dumps([row], indent=1))
    else:
        path = str(logs / f"a.jsonl.{kind}")
        squeezed = gzip.compress(text) if kind == "gz" else pa.compress(text, "zstd", asbytes=True)
        (logs / f"a.jsonl.{kind}").write_bytes(squeezed)
    report = check_paths([path], settings=Settings())
    assert [finding.code for finding in report.findings] == ["TM105"] and report.traces == 1


def test_a_log_twice_or_beside_a_dataset_is_refused(tmp_path):
    from tracemask.core.errors import UsageError

    log, rows = tmp_path / "log.jsonl", tmp_path / "rows.jsonl"
    log.write_text(json.dumps({"messages": GOOD}) + "\n")
    rows.write_text('{"input_ids": [1, 2], "loss_mask": [0, 1]}\n')
    with pytest.raises(UsageError, match="TM900 this input is given twice"):
        check_paths([str(log), f"{tmp_path}/./log.jsonl"], settings=Settings())
    for pair in ((log, rows), (rows, log)):
        with pytest.raises(UsageError, match=r"rows.jsonl: TM900 a dataset of token ids, and .*log.jsonl is a log"):
            check_paths(list(map(str, pair)), settings=Settings())
    with pytest.raises(UsageError, match="TM900 this file is given twice"):
        check_paths([str(rows), str(rows)], settings=Settings())


def test_a_log_that_was_written_twice_is_found_though_its_copies_share_a_group(tmp_path):
    log = tmp_path / "log.jsonl"
    once = [line for line in HARBOUR.read_text().split("\n") if line and not line.startswith('{"id":"harbour-5')][:10]
    for copies in (1, 2):
        log.write_text("\n".join(once * copies) + "\n")
        report = check_paths([str(log)], settings=Settings(tokenizer=str(SMALL), select=("TM502", "TM409")))
        found = [(finding.code, finding.cause, finding.place.line) for finding in report.findings]
        assert found == [("TM502", "written twice", line) for line in range(11, 21)] * (copies - 1)
    assert report.findings[0].message.endswith("as line 1, and its name")


def test_attempts_that_bear_the_id_of_their_task_are_found(tmp_path):
    """As one rollout they would have one reward, and a group of one no advantage."""
    log = tmp_path / "log.jsonl"
    attempts = [json.loads(line) for line in HARBOUR.read_text().split("\n")[:3]]
    log.write_text("".join(json.dumps({**each, "id": each["task_id"]}) + "\n" for each in attempts))
    report = check_paths([str(log)], settings=Settings(tokenizer=str(SMALL), select=("TM502",)))
    assert [(finding.cause, finding.place.line) for finding in report.findings] == [("one name", 2), ("one name", 3)]
    assert report.findings[0].message == "the name of line 1, and other ids: both count as one rollout"
