"""The shape of turns in ids: openers, stops, separators, learned by probing a chat template. Knows no dataset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

from tracemask.check.lens import Lens
from tracemask.core.errors import TracemaskError
from tracemask.core.vocab import Role
from tracemask.render.parts import empty_reasoning

# A probe's contents: words that no template writes or alters.
_SYSTEM, _USER, _REPLY, _AGAIN, _LAST, _RESULT = "Zyqsa", "Zyqub", "Zyqrc", "Zyqud", "Zyqle", "Zyqtf"

Render = Callable[[list[dict[str, Any]], bool], str | None]


@dataclass(frozen=True, slots=True)
class Opener:
    """What begins a turn: `ids` up to its trailing whitespace, then `tail` (ids of that whitespace, maybe none)."""

    role: Role
    ids: tuple[int, ...]
    tail: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Grammar:
    """How turns look. reply_stop: the id after a plain reply. separator: ids between that stop and the next opener.

    prefill: ids of the generation prompt after the assistant's opener. leading: ids that the template itself writes
    between the opener and a reply without reasoning. think: ids that open and close reasoning, where they are tokens.
    """

    openers: tuple[Opener, ...]
    stops: frozenset[int]
    reply_stop: int | None = None
    separator: tuple[int, ...] = ()
    prefill: tuple[int, ...] = ()
    leading: tuple[int, ...] = ()
    think: tuple[int, int] | None = None

    @property
    def opener_stops(self) -> bool:
        """A turn ends with the next turn's opener (GLM)."""
        return self.reply_stop is not None and any(opener.ids[0] == self.reply_stop for opener in self.openers)


def learn(lens: Lens, render: Render) -> Grammar | None:
    """The grammar of the template behind `render(messages, add_generation_prompt)`; None where it cannot be told.

    `render` returns None where the template refuses a conversation.
    """
    said = (("user", _USER), ("assistant", _REPLY), ("user", _AGAIN), ("assistant", _LAST))
    conversation = [_message(role, content) for role, content in said]
    text, generation = render(conversation, False), _generation(render, conversation[:1])
    if text is None:
        return None
    between = _pieces(text, (_USER, _REPLY, _AGAIN, _LAST))
    if between is None or not generation:
        return None
    _, to_reply, to_user, to_last, _ = between
    header, prefill = _header(to_reply, generation)
    if not header:
        return None
    closing = lens.encode(to_user)
    stop, separator, rest = _split_closing(lens, closing)
    openers = [_opener(lens, Role.ASSISTANT, lens.encode(header))]
    if rest:
        openers.append(_opener(lens, Role.USER, rest))
    taken = {opener.ids for opener in openers}
    stops: frozenset[int] = lens.stops | (set() if stop is None else {stop})
    more = _more_openers(lens, render, {one.ids[0] for one in openers}, stops)
    openers += [each for each in more if each.ids not in taken]
    if not all(any(_marks(lens, i) for i in opener.ids) for opener in openers):
        return None
    tail = to_last[to_last.rfind(header) + len(header) :] if header in to_last else ""
    return Grammar(
        openers=tuple(sorted(set(openers), key=lambda opener: (-len(opener.ids), opener.ids))),
        stops=stops,
        reply_stop=stop,
        separator=tuple(separator),
        prefill=tuple(lens.encode(prefill)),
        leading=tuple(lens.encode(tail[: empty_reasoning(tail, 0, len(tail))])),
        think=_think(lens),
    )


def _generation(render: Render, messages: list[dict[str, Any]]) -> str:
    """What the template writes when it asks for a reply; nothing where that cannot be told."""
    opened, plain = render(messages, True), render(messages, False)
    return opened[len(plain) :] if opened is not None and plain is not None and opened.startswith(plain) else ""


def guess(lens: Lens) -> Grammar | None:
    """The grammar of a tokenizer without a template, from the names of its added tokens; None where unknown."""
    if lens.id_of("<|im_start|>") is not None and lens.id_of("<|im_end|>") is not None:
        return _known(lens, "<|im_start|>{}\n", ("system", "user", "assistant", "tool"), "<|im_end|>", "\n")
    if lens.id_of("<|start_header_id|>") is not None and lens.id_of("<|eot_id|>") is not None:
        shape = "<|start_header_id|>{}<|end_header_id|>\n\n"
        return _known(lens, shape, ("system", "user", "assistant", "ipython", "tool"), "<|eot_id|>", "")
    if lens.id_of("<start_of_turn>") is not None and lens.id_of("<end_of_turn>") is not None:
        return _known(lens, "<start_of_turn>{}\n", ("user", "model"), "<end_of_turn>", "\n")
    return None


_ROLES = {"ipython": Role.TOOL, "model": Role.ASSISTANT}


def _known(lens: Lens, shape: str, names: tuple[str, ...], stop: str, separator: str) -> Grammar:
    openers = [_opener(lens, _ROLES.get(name) or Role[name.upper()], lens.encode(shape.format(name))) for name in names]
    stop_id = lens.id_of(stop)
    assert stop_id is not None
    return Grammar(
        openers=tuple(sorted(openers, key=lambda opener: (-len(opener.ids), opener.ids))),
        stops=lens.stops | {stop_id},
        reply_stop=stop_id,
        separator=tuple(lens.encode(separator)) if separator else (),
        think=_think(lens),
    )


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def _pieces(text: str, words: tuple[str, ...]) -> list[str] | None:
    """What stands before, between and after `words`; None unless each occurs once, in this order."""
    out, at = [], 0
    for word in words:
        found = text.find(word, at)
        if found < 0 or text.count(word) != 1:
            return None
        out.append(text[at:found])
        at = found + len(word)
    return [*out, text[at:]]


def _header(between: str, generation: str) -> tuple[str, str]:
    """The assistant's opener as written in history, and what the generation prompt writes after it."""
    best, length = 0, 0
    for at in range(len(between)):
        n = 0
        while at + n < len(between) and n < len(generation) and between[at + n] == generation[n]:
            n += 1
        if n > length:
            best, length = at, n
    return between[best : best + length], generation[length:]


def _split_closing(lens: Lens, ids: list[int]) -> tuple[int | None, list[int], list[int]]:
    """(stop, separator, the user's opener) of what stands between a reply and the next user message."""
    at = _blanks(lens, ids)
    if at == len(ids) or not lens.added[ids[at]]:
        return None, [], ids
    stop, rest = ids[at], ids[at + 1 :]
    n = _blanks(lens, rest)
    if not any(_marks(lens, i) for i in rest[n:]):  # no opener of its own follows: the stop is the opener (GLM)
        return stop, [], ids[at:]
    return stop, rest[:n], rest[n:]


def _marks(lens: Lens, token: int) -> bool:
    """An added token that is more than white space (Gemma has newlines among its added tokens)."""
    return bool(lens.added[token]) and bool(lens.text([token]).strip())


def _blanks(lens: Lens, ids: list[int]) -> int:
    """How many leading ids are white space."""
    n = 0
    while n < len(ids) and not lens.text([ids[n]]).strip():
        n += 1
    return n


def _opener(lens: Lens, role: Role, ids: list[int]) -> Opener:
    """Up to the last mark and the role's name behind it, if any; then the white space that follows."""
    marks = [i for i, token in enumerate(ids) if _marks(lens, token)] or [0]
    end = marks[-1] + 1
    while (
        len(marks) == 1 and end < len(ids) and lens.text([ids[end]]).strip() and not lens.text([ids[end]])[0].isspace()
    ):
        end += 1
    return Opener(role, tuple(ids[:end]), tuple(ids[end : end + _blanks(lens, ids[end:])]))


def _more_openers(lens: Lens, render: Render, first: set[int], stops: frozenset[int]) -> list[Opener]:
    """Openers of system and tool messages, where the template has them; first: ids that begin known openers."""
    out = []
    text = render([_message("system", _SYSTEM), _message("user", _USER)], False)
    if text is not None and _SYSTEM in text:
        for ids in _turns(lens.encode(text[: text.find(_SYSTEM)]), first, stops):
            out.append(_opener(lens, Role.SYSTEM, ids))
    out += _tool_openers(lens, render, first)
    return out


def _turns(ids: list[int], first: set[int], stops: frozenset[int]) -> list[list[int]]:
    """`ids` cut where a turn begins, each turn without its stop and what follows it."""
    places = [i for i, token in enumerate(ids) if token in first]
    out = []
    for at, end in zip(places, [*places[1:], len(ids)]):
        out.append(ids[at : next((i for i in range(at, end) if ids[i] in stops), end)])
    return out


def _tool_openers(lens: Lens, render: Render, first: set[int]) -> list[Opener]:
    """What begins a tool result, and what begins a reply after one where that is not the usual opener (DeepSeek)."""
    text, other = _called(render, "zyq"), _called(render, "xwk")
    if text is None or other is None:
        return []
    turn, theirs = (_behind_stop(lens, each[: each.find(_RESULT)]) for each in (text, other))
    turn = turn[: next((i for i, (x, y) in enumerate(zip(turn, theirs)) if x != y), len(turn))]  # without the name
    places = [i for i, token in enumerate(turn) if token in first]
    if places:
        out = [_opener(lens, Role.TOOL, turn[places[-1] :])]
    else:
        out = [_opener(lens, Role.TOOL, turn)] if turn and _marks(lens, turn[0]) else []
    after = text[text.find(_RESULT) + len(_RESULT) :]
    if _LAST in after:
        between = lens.encode(after[: after.find(_LAST)])
        marks = [i for i in between if _marks(lens, i)]
        if marks and not first & set(between):
            out.append(Opener(Role.ASSISTANT, (marks[-1],)))
    return out


def _behind_stop(lens: Lens, text: str) -> list[int]:
    """The ids of `text` behind its last stop and the white space there."""
    ids = lens.encode(text)
    last = max((i for i, token in enumerate(ids) if token in lens.stops), default=-1)
    return ids[last + 1 + _blanks(lens, ids[last + 1 :]) :]


def _called(render: Render, name: str) -> str | None:
    """A conversation with one call of tool `name` and its result, in the first spelling that the template prints."""
    for arguments, content in product(({"zyq": 1}, '{"zyq": 1}'), ("", None)):
        function = {"name": name, "arguments": arguments}
        call = {"id": "call00001", "type": "function", "function": function}
        result = {"role": "tool", "content": _RESULT, "tool_call_id": call["id"], "name": name}
        talk = [_message("user", _USER), {"role": "assistant", "content": content, "tool_calls": [call]}, result]
        for messages in ([*talk, _message("assistant", _LAST)], talk):
            text = render(messages, False)
            if text is not None and text.count(_RESULT) == 1:
                return text
    return None


def _think(lens: Lens) -> tuple[int, int] | None:
    opens, closes = lens.id_of("<think>"), lens.id_of("</think>")
    return (opens, closes) if opens is not None and closes is not None else None


def template_render(template: Any) -> Render:
    """`render` of learn() for a render.template.Template."""

    def render(messages: list[dict[str, Any]], generation: bool) -> str | None:
        try:
            return template.render(messages, add_generation_prompt=generation).text
        except TracemaskError:
            return None

    return render
