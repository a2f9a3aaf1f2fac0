"""The hook for people who sample: OpenAI-compatible responses in, our own JSONL out. Knows no client library."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tracemask.trace.chat import cut_short, message_from_chat, messages_from_chat
from tracemask.trace.engine import reply_of
from tracemask.trace.jsonl import Arrays, dumps, to_json
from tracemask.trace.model import EdgeKind, Source
from tracemask.trace.storable import refuse_unstorable
from tracemask.trace.tree import Tree


class Rollout:
    """One agent run while it happens. Set `reward`, `rewards`, `truncated`, `stop`, … as plain attributes.

    A value that JSON has no spelling for is TraceError TM911 where it is set, not when the rollout is over.
    """

    def __init__(self, **scalars: Any) -> None:
        self._tree, self._tools = Tree(), None
        for name, value in scalars.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            refuse_unstorable(value, name)
        super().__setattr__(name, value)

    def call(
        self,
        messages: Sequence[Mapping[str, Any]],
        response: Any,
        tools: Any = None,
        *,
        edge: EdgeKind | None = None,
        choice: int | None = None,
        **sampling: Any,
    ) -> None:
        """One model call: the messages that were sent and the response (object or dict); sampling: temperature, ….

        choice: which of several choices this rollout went on with.
        edge: why these messages do not extend the last reply, where they do not (compaction, subagent, rewrite, …).
        vLLM: pass extra_body={"return_token_ids": True} and logprobs=True; SGLang: return_meta_info and logprobs.
        Raises TraceError TM911, TM101 naming the field.
        """
        number = len(self._tree.messages)
        dump = getattr(response, "model_dump", None)
        raw: Any = response if dump is None else dump()
        found = reply_of(raw, choice=choice) | sampling
        refuse_unstorable(found, "response")
        refuse_unstorable(tools, "tools")
        reply = message_from_chat(found, number, where="response")
        prompt = messages_from_chat(messages)
        for index, message in enumerate(prompt):
            message.id = f"m{number}.{index}"
        last = self._tree.messages[-1].id if self._tree.messages else None
        self._tree.call(prompt, reply)
        if edge is not None:
            self._tree.link(edge, last, self._tree.fresh)
        self._tools = tools or self._tools

    def add(self, *messages: Mapping[str, Any]) -> None:
        """Messages after the last reply that no further call will repeat: a last tool result, a verifier's word."""
        last = self._tree.messages[-1].id if self._tree.messages else None
        more = messages_from_chat(messages)
        for message in more:
            message.author = "user" if last and message.author == "taskset" else message.author
        self._tree.walk(more, last)


class Recorder:
    """Appends finished rollouts to a JSONL file, one locked and synced write each: a crash loses only what still ran.

    >>> recorder = Recorder("rollouts.jsonl")
    >>> with recorder.rollout(id="7-0", group_id="7") as rollout:
    ...     rollout.call(messages, client.chat.completions.create(messages=messages, ...))
    ...     rollout.reward = 1.0
    """

    def __init__(self, path: str | os.PathLike[str], *, arrays: Arrays = Arrays.LIST) -> None:
        self.path, self.arrays = os.fspath(path), arrays

    @contextlib.contextmanager
    def rollout(self, id: str, **scalars: Any) -> Iterator[Rollout]:
        """A rollout that is written when the block ends; an exception is recorded in `errors` and goes on."""
        rollout = Rollout(id=id, **scalars)
        try:
            yield rollout
        except Exception as error:
            rollout.__dict__.setdefault("errors", []).append(f"{type(error).__name__}: {error}")
            raise
        finally:
            self._append(rollout)

    def _append(self, rollout: Rollout) -> None:
        known = {key: value for key, value in vars(rollout).items() if not key.startswith("_")}
        known.setdefault("truncated", cut_short(rollout._tree.messages))
        trace = rollout._tree.trace(
            tools=rollout._tools, source=Source(format="tracemask", importer="recorder"), **known
        )
        line = dumps(to_json(trace, arrays=self.arrays)) + b"\n"
        with open(self.path, "ab+") as file:
            _lock(file.fileno())
            if file.seek(0, os.SEEK_END) and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
                line = b"\n" + line  # an earlier process died while it wrote: its half line ends here
            file.write(line)
            file.flush()
            os.fsync(file.fileno())


def _lock(handle: int) -> None:
    """Keeps other recorders of this file out until it is closed (POSIX; elsewhere one process may write a file)."""
    with contextlib.suppress(ImportError):
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX)
