"""Events of the older OpenHands app (`action`, `observation`). Knows no file."""

from __future__ import annotations

import json
from typing import Any, cast

from tracemask.trace.chat import CALL_SHAPE, CHAT_SHAPE
from tracemask.trace.engine import call_of
from tracemask.trace.fields import Fields
from tracemask.trace.formats.openhands_told import told_before
from tracemask.trace.formats.openhands_view import View
from tracemask.trace.model import AuthorName, Block, Message, Text, ToolResult
from tracemask.trace.parts import media_block
from tracemask.trace.sampled import sampled_from_fields
from tracemask.trace.shape import known

_SAID = (
    "message",
    "run",
    "run_ipython",
    "read",
    "write",
    "edit",
    "browse",
    "browse_interactive",
    "delegate",
    "finish",
    "reject",
    "think",
    "task_tracking",
    "call_tool_mcp",
)
_UNSEEN = ("agent_state_changed", "recall", "null")
_RESPONSE = known(
    "id created model object system_fingerprint usage service_tier prompt_logprobs prompt_token_ids "
    "kv_transfer_params provider_specific_fields",
    choices=known(
        "index finish_reason logprobs token_ids prompt_token_ids stop_reason provider_specific_fields matched_stop",
        message={**CHAT_SHAPE, "tool_calls": CALL_SHAPE, "thinking_blocks": None, "images": None},
    ),
)
LEGACY_SHAPE = known(
    "id timestamp source action observation message content cause timeout success llm_metrics error tool_result",
    args=known(
        "content command code path url thought reasoning tools image_urls file_urls wait_for_response security_risk "
        "confirmation_state is_input blocking hidden cwd is_static task_completed outputs final_thought agent "
        "inputs browser_actions browsergym_send_msg_to_user return_axtree old_str new_str insert_line file_text "
        "view_range impl_source start end translated_ipython_code kernel_init_code include_extra last_k query "
        "recall_type forgotten_event_ids forgotten_events_start_id forgotten_events_end_id summary summary_offset "
        "task_list plan name arguments reason agent_class openhands_version"
    ),
    extras=known(
        "command metadata hidden path agent_state reason recall_type microagent_knowledge image_urls code old_content "
        "new_content prev_exist impl_source format_diff diff url screenshot error_id exit_code task_list outputs name "
        "trigger_by_action last_browser_action last_browser_action_error focused_element_bid axtree_object "
        "extra_element_properties open_pages_urls active_page_index dom_object set_of_marks goal_image_urls "
        "repo_name repo_directory repo_instructions runtime_hosts additional_agent_instructions date "
        "custom_secrets_descriptions conversation_instructions working_dir screenshot_path arguments files"
    ),
    tool_call_metadata=known("function_name tool_call_id total_calls_in_response", model_response=_RESPONSE),
)


class Legacy:
    """Puts the app's events into a view."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.calls: dict[str, str] = {}  # action event id → tool call id

    def event(self, event: Fields, name: str) -> None:
        """One event; actions of the environment and states of the agent are noted."""
        source, action = event.take_str("source"), event.take_str("action")
        args = arguments(event) if action is not None else Fields({}, event.where)
        meta = event.take("tool_call_metadata")
        if action == "system":
            self._append(name, "system", "harness", [Text(text=args.take_str("content") or "")])
            tools = args.take("tools")
            self.view.tools = tools if isinstance(tools, list) else self.view.tools
        elif action == "message" and source == "user":
            author: AuthorName = "user" if self.view.seen_user else "taskset"
            self.view.seen_user = True
            blocks: list[Block] = [Text(text=args.take_str("content") or "")]
            self._append(name, "user", author, [*blocks, *_images(args)])
        elif action is not None and source == "agent":
            self._action(action, args, meta, name)
        elif event.has("observation"):
            self._observation(event, meta, name)
        else:
            self.view.passed_over(action or source)

    def _action(self, action: str, args: Fields, meta: Any, name: str) -> None:
        """With tool_call_metadata the model's own message is there; without, the action is text."""
        self.view.stop = "finish" if action == "finish" else self.view.stop
        if isinstance(meta, dict) and self._reply(Fields(meta, args.at("tool_call_metadata")), name):
            return
        if action not in _SAID:
            self.view.passed_over(action)
            return
        thought = args.get("thought") or args.get("final_thought") or args.get("content") or ""
        rest = {key: value for key, value in args.raw.items() if key in ("command", "code", "path", "url")}
        text = str(thought) if not rest else f"{thought}\n{json.dumps(rest, ensure_ascii=False)}".strip()
        self._append(name, "assistant", "policy", [Text(text=text)])

    def _reply(self, meta: Fields, name: str) -> bool:
        """The reply that an action is part of, where the log has it; its ids, where the engine was asked for them."""
        self.calls[name] = meta.take_id("tool_call_id") or ""
        raw = meta.take("model_response") or {}
        response = Fields(raw, meta.at("model_response"))
        identity, choices = response.get("id"), response.take_list("choices") or []
        if identity is not None and identity == self.view.group:
            return True  # another call of the same reply
        if not choices:
            return False
        choice = Fields(choices[0], response.at("choices[0]"))
        chat = choice.take_dict("message") or {}
        message = self.view.chat({"role": "assistant", **chat}, name, choice.at("message"))
        call = call_of(raw, response.where)
        message.finish_reason = call.get("finish_reason")
        if "token_ids" in call and message.role == "assistant":
            message.sampled = sampled_from_fields(Fields(call, response.where))
            message.finish_reason = None
        self.view.append(name, message)
        self.view.group = identity if isinstance(identity, str) else None
        return True

    def _observation(self, event: Fields, meta: Any, name: str) -> None:
        kind = event.take_str("observation")
        if kind in _UNSEEN:
            self.view.passed_over(kind)
            return
        content = event.take("content")
        if content is not None and not isinstance(content, str):
            raise event.error("content", "expected a string")
        known_call = Fields(meta, event.at("tool_call_metadata")) if isinstance(meta, dict) else Fields({}, event.where)
        call_id = known_call.take_id("tool_call_id") or self.calls.get(str(event.get("cause")))
        given = event.get("extras")
        extras = Fields(given if isinstance(given, dict) else {}, event.at("extras"))
        said = told_before(kind, content or "", extras, called=bool(call_id))
        blocks: list[Block] = [Text(text=said), *_images(extras)]
        if call_id:
            result = ToolResult(call_id=call_id, content=blocks, is_error=kind == "error")
            self.view.append(name, Message(id=name, role="tool", author="environment", blocks=[result]))
        else:
            self._append(name, "user", "environment", blocks)

    def _append(self, name: str, role: Any, author: AuthorName, blocks: list[Block]) -> None:
        self.view.append(name, Message(id=name, role=role, author=author, blocks=blocks, parts=len(blocks) > 1))


def arguments(event: Fields) -> Fields:
    """The arguments of an action. Raises TraceError TM911 where it has none."""
    return Fields(event.take("args"), event.at("args"))


def _images(fields: Fields) -> list[Block]:
    urls = fields.get("image_urls")
    found = cast("list[Any]", urls) if isinstance(urls, list) else []
    return [media_block({"type": "image_url", "image_url": {"url": url}}) for url in found if isinstance(url, str)]
