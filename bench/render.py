"""Rendering measured against raw encoding, the package `renderers` and apply_chat_template's assistant mask.

All contenders run interleaved in one process on one thread; figures are medians. Needs fixtures/fetch.py's cache. Ours
runs with its default backend (the word cache), with `tokenizers` alone and with gigatoken; `renderers` and transformers
are compared where they are installed; what could not be measured is named in the result with the reason. Raw encoding
is one string a conversation, with ids taken out as lists, and no labels.

    python bench/render.py [--traces 200] [--repeats 3] [--out bench/results/render.json]
"""

from __future__ import annotations

import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import argparse
import atexit
import json
import math
import platform
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracemask.render.renderer import Renderer
from tracemask.render.template import Template
from tracemask.render.tokenizer import Tokenizer
from tracemask.trace.chat import to_chat
from tracemask.trace.model import Trace

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / "fixtures" / ".cache"
SEED = 7


def words() -> list[str]:
    import runpy

    return runpy.run_path(str(ROOT / "fixtures" / "make_tokenizer.py"))["WORDS"]


class Corpus:
    """Agent runs of 12 to 30 replies: long system prompt, six tools, tool output of many lines."""

    def __init__(self) -> None:
        self.random = random.Random(SEED)
        self.words = words()
        self.tools = [self._tool(name) for name in ("search", "read", "write", "run", "list_files", "submit")]

    def text(self, count: int) -> str:
        return " ".join(self.random.choices(self.words, k=count)).capitalize() + "."

    def _tool(self, name: str) -> dict[str, Any]:
        properties = {key: {"type": "string", "description": self.text(15)} for key in ("query", "path", "limit")}
        parameters = {"type": "object", "properties": properties, "required": ["query"]}
        return {"type": "function", "function": {"name": name, "description": self.text(40), "parameters": parameters}}

    def agent(self, replies: int, system: str, task: str) -> list[dict[str, Any]]:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": task}]
        for turn in range(replies - 1):
            arguments = json.dumps({"query": self.text(5), "path": f"src/{self.random.choice(self.words)}.py"})
            call = {"id": f"call{turn:05}", "type": "function", "function": {"name": "search", "arguments": arguments}}
            lines = [f"{line:4d}  {self.text(12)}" for line in range(self.random.randint(3, 15))]
            messages += [
                {
                    "role": "assistant",
                    "content": self.text(8),
                    "reasoning_content": self.text(35),
                    "tool_calls": [call],
                },
                {"role": "tool", "tool_call_id": call["id"], "content": "\n".join(lines)},
            ]
        return [*messages, {"role": "assistant", "content": self.text(30), "reasoning_content": self.text(35)}]

    def chat(self, replies: int) -> list[dict[str, Any]]:
        messages = [{"role": "system", "content": self.text(300)}]
        for _ in range(replies):
            messages += [
                {"role": "user", "content": self.text(80)},
                {"role": "assistant", "content": self.text(60)},
            ]
        return messages

    def agents(self, count: int, group: int) -> list[Trace]:
        """`group` runs in a row share the system prompt and the task, as rollouts of one group do."""
        traces: list[Trace] = []
        system = task = ""
        for index in range(count):
            if index % group == 0:
                system, task = self.text(900), self.text(250)
            replies = self.random.randint(12, 30)
            traces.append(Trace.from_messages(self.agent(replies, system, task), self.tools, id=f"t{index}"))
        return traces

    def chats(self, count: int) -> list[Trace]:
        return [Trace.from_messages(self.chat(self.random.randint(12, 30)), id=f"c{index}") for index in range(count)]


def llama_folder(source: Path) -> Path:
    """The tokenizer as Llama 3.1 and later have it, which `renderers` asks for: one reserved token is <|eom_id|>."""
    folder = Path(tempfile.mkdtemp(prefix="tracemask-llama-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (source / name).read_text(encoding="utf-8")
        (folder / name).write_text(text.replace("<|reserved_special_token_4|>", "<|eom_id|>"), encoding="utf-8")
    (folder / "chat_template.jinja").write_bytes((CACHE / "templates" / "llama3_2.jinja").read_bytes())
    return folder


def cpu() -> float:
    """Processor seconds of this process."""
    return time.process_time()


def interleaved(contenders: dict[str, Callable[[], Any]], repeats: int) -> dict[str, dict[str, float]]:
    """Median processor and wall seconds of each contender; one round runs each once."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for round_number in range(repeats + 1):
        for name, run in contenders.items():
            start_cpu, start = cpu(), time.perf_counter()
            run()
            if round_number:  # the first round warms up
                taken[name].append((cpu() - start_cpu, time.perf_counter() - start))
    return {
        name: {
            "cpu_s": round(statistics.median(c for c, _ in values), 6),
            "wall_s": round(statistics.median(w for _, w in values), 4),
        }
        for name, values in taken.items()
    }


class Subject:
    """One real tokenizer with its template, and traces to render."""

    def __init__(self, name: str, traces: list[Trace], missing: dict[str, str]) -> None:
        self.name = name
        self.missing = missing
        self.folder, self.kwargs = CACHE / "tokenizers" / name, dict[str, Any]()
        if name == "llama3_1":
            self.folder, self.kwargs = llama_folder(self.folder), {"date_string": "26 Jul 2024"}
        self.traces = traces
        self.slow = Tokenizer.load(self.folder)
        self.alone = Tokenizer.load(self.folder, backend="tokenizers")
        self.fast = self._fast()
        assert self.slow.chat_template is not None
        self.inline = Template(self.slow.chat_template, tokens=self.slow.token_strings, sandbox="inline")
        self.worker = Template(self.slow.chat_template, tokens=self.slow.token_strings)
        self.chats = [([to_chat(message) for message in trace.messages], trace.tools) for trace in traces]
        front = Renderer(self.slow, self.inline, history="as_rendered", template_kwargs=self.kwargs)
        self.texts = [front.render_text(chat, tools).text for chat, tools in self.chats]
        self.ids = [rows[0].token_ids.tolist() for rows in front.render_many(traces)]
        self.tokens = sum(map(len, self.ids))

    def _fast(self) -> Tokenizer | None:
        try:
            tokenizer = Tokenizer.load(self.folder, backend="gigatoken")
            tokenizer.encode("warm")
        except Exception as error:
            self.leave_out("gigatoken", error)
            return None
        return tokenizer

    def leave_out(self, contender: str, why: object) -> None:
        """Names a contender that cannot be measured on this tokenizer."""
        self.missing[f"{self.name}: {contender}"] = (
            f"{type(why).__name__}: {why}" if isinstance(why, Exception) else str(why)
        )

    def ours(self, tokenizer: Tokenizer, template: Template) -> Callable[[], Any]:
        """The whole way from traces to samples; what one round encoded is forgotten before the next."""
        front = Renderer(tokenizer, template, history="as_rendered", template_kwargs=self.kwargs)

        def run() -> Any:
            front.encoder.forget()
            return front.render_many(self.traces)

        return run

    def raw(self) -> Any:
        return self.slow.reference.encode_batch(self.texts)

    def contenders(self) -> dict[str, Callable[[], Any]]:
        found: dict[str, Callable[[], Any]] = {
            "raw encode_batch_fast": self.raw,
            "tracemask": self.ours(self.slow, self.inline),
            "tracemask, worker": self.ours(self.slow, self.worker),
            "tracemask, tokenizers alone": self.ours(self.alone, self.inline),
        }
        if self.fast is not None:
            found["tracemask, gigatoken"] = self.ours(self.fast, self.inline)
        return found


def peer(subject: Subject, name: str) -> tuple[Callable[[], Any], float] | None:
    """(run, share of conversations with the same ids) for the package `renderers`."""
    try:
        import renderers
        from transformers import AutoTokenizer
    except ImportError as error:
        subject.leave_out("renderers", error)
        return None
    try:
        made = getattr(renderers, name)(AutoTokenizer.from_pretrained(subject.folder))
    except Exception as error:  # the package asserts and raises of many kinds
        subject.leave_out(f"renderers.{name}", error)
        return None

    def run() -> list[Any]:
        return [made.render(chat, tools=tools) for chat, tools in subject.chats]

    same = sum(list(out.token_ids) == ids for out, ids in zip(run(), subject.ids, strict=True)) / len(subject.ids)
    return run, same


def assistant_masks(subject: Subject) -> Callable[[], Any] | None:
    """apply_chat_template with the training template of trl, which marks replies."""
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        subject.leave_out("apply_chat_template with assistant mask", error)
        return None
    tokenizer = AutoTokenizer.from_pretrained(subject.folder)
    template = (CACHE / "templates" / "qwen3_training.jinja").read_text(encoding="utf-8")

    def run() -> None:
        for chat, tools in subject.chats:
            tokenizer.apply_chat_template(
                chat, tools=tools, chat_template=template, return_assistant_tokens_mask=True, return_dict=True
            )

    return run


def scaling(corpus: Corpus, repeats: int) -> dict[str, Any]:
    """Processor time of one agent run against its number of replies; slope in log-log."""
    turns = [10, 20, 40, 80, 160]
    traces = {
        count: Trace.from_messages(corpus.agent(count, corpus.text(300), corpus.text(100)), corpus.tools)
        for count in turns
    }
    tokenizer = Tokenizer.load(CACHE / "tokenizers" / "qwen3")
    assert tokenizer.chat_template is not None
    template = Template(tokenizer.chat_template, tokens=tokenizer.token_strings, sandbox="inline")

    def run(count: int) -> Callable[[], Any]:
        front = Renderer(tokenizer, template)
        front.render(traces[10])

        def once() -> Any:
            front.encoder.forget()
            return front.render(traces[count])

        return once

    taken = interleaved({str(count): run(count) for count in turns}, repeats + 2)
    x = [math.log(count) for count in turns]
    y = [math.log(taken[str(count)]["cpu_s"]) for count in turns]
    mean_x, mean_y = statistics.mean(x), statistics.mean(y)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y)) / sum((a - mean_x) ** 2 for a in x)
    renders = Renderer(tokenizer, template)
    renders.render(traces[10])
    before = renders.counter.renders
    renders.render(traces[160])
    return {
        "replies": turns,
        "taken": taken,
        "slope": round(slope, 3),
        "renders_at_160": renders.counter.renders - before,
    }


def ratios(taken: dict[str, dict[str, float]], against: str) -> dict[str, float]:
    """How many times faster than `against`, in processor time; the worker's own is not counted, so it is left out."""
    base = taken[against]["cpu_s"]
    names = [name for name in taken if name != against and "worker" not in name]
    return {name: round(base / taken[name]["cpu_s"], 3) for name in names}


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    corpus = Corpus()
    missing: dict[str, str] = {
        "worker against others": "the template's process is not in this process's time: wall seconds only",
        "wall seconds": "of a shared machine: ratios are of processor time",
    }
    out: dict[str, Any] = {"machine": machine(), "seed": SEED, "traces": arguments.traces, "not measured": missing}
    for label, group in (("ungrouped", 1), ("grouped by 8", 8)):
        subject = Subject("qwen3", corpus.agents(arguments.traces, group), missing)
        taken = interleaved(subject.contenders(), arguments.repeats)
        out[label] = {"tokens": subject.tokens, "taken": taken, "times raw": ratios(taken, "raw encode_batch_fast")}
        print(label, json.dumps(out[label]["times raw"]), flush=True)
    out["peers"] = {}
    few = max(arguments.traces // 3, 4)
    for name, made, traces in (
        ("qwen3", "Qwen3Renderer", corpus.agents(few, 1)),
        ("llama3_1", "Llama3Renderer", corpus.chats(few)),
        ("deepseek_v3", "DeepSeekV3Renderer", corpus.chats(few)),
    ):
        subject = Subject(name, traces, missing)
        contenders = subject.contenders()
        found = peer(subject, made)
        same = None
        if found is not None:
            contenders["renderers"], same = found
        masks = assistant_masks(subject) if name == "qwen3" else None
        if name != "qwen3":
            subject.leave_out(
                "apply_chat_template with assistant mask", "trl's marked template is compared on Qwen3 only"
            )
        if masks is not None:
            contenders["apply_chat_template with assistant mask"] = masks
        taken = interleaved(contenders, arguments.repeats)
        out["peers"][name] = {
            "tokens": subject.tokens,
            "same ids as renderers": same,
            "taken": taken,
            "times raw": ratios(taken, "raw encode_batch_fast"),
            "times renderers": ratios(taken, "renderers") if found is not None else None,
        }
        print(name, "same ids", same, json.dumps(out["peers"][name]["times renderers"]), flush=True)
    out["scaling"] = scaling(corpus, arguments.repeats)
    out["machine"]["load at the end"] = [round(value, 1) for value in os.getloadavg()]
    print("not measured", json.dumps(missing, indent=1))
    print("slope", out["scaling"]["slope"], "renders at 160 replies", out["scaling"]["renders_at_160"])
    return out


def machine() -> dict[str, Any]:
    from importlib.metadata import version

    packages = ("tokenizers", "numpy", "jinja2", "gigatoken", "renderers", "transformers")
    known: dict[str, str] = {}
    for name in packages:
        try:
            known[name] = version(name)
        except Exception:
            known[name] = "absent"
    system = {"system": platform.platform(), "cpus": os.cpu_count(), "python": platform.python_version()}
    return {**system, "packages": known, "threads": 1, "load": [round(value, 1) for value in os.getloadavg()]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "render.json")
    arguments = parser.parse_args()
    result = measure(arguments)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
